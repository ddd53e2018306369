"""The files of the persistent compilation cache: names, the format of a program, and a scan of a folder.

    <hash>.xla      an executable, by its StableHLO
    <hash>.graph    the .xla file of a recorded graph, by its key (graph_key.py): so that it need not be traced
    <hash>.script   the .xla files that a command line uses first (prefetch.py)

A program: a magic line, a SHA-256 of the file's name and of all that follows, the length of a JSON description (four
bytes), the description, and the pickled executable with its devices. Listing reads only the description, as unpickling
runs code.

This module imports neither torch nor jax.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The first line of a program; also part of each key, so that programs of another format are never looked up.
MAGIC = b"torch_xla program 6\n"
_CHECKSUM = hashlib.sha256().digest_size
_LENGTH = 4  # bytes
_MOST_INFO = 1 << 16  # bytes of a description that a listing reads

# The files of the cache in a folder that may have others: programs, entries, and partial files being written.
PROGRAM = re.compile(r"[0-9a-f]{64}\.xla")
ENTRY = re.compile(r"[0-9a-f]{64}\.(xla|graph|script)")
PARTIAL = re.compile(r"[0-9a-f]{64}\.([0-9a-f]{32}|\d+\.\d+)")
PARTIAL_MAX_AGE = 3600.0  # seconds, after which a partial file is left over from a killed process


def pack(name: str, info: Mapping[str, Any], payload: bytes) -> bytes:
    """Return the contents of the program file ``name``."""
    text = json.dumps(info).encode()
    body = len(text).to_bytes(_LENGTH, "big") + text + payload
    return MAGIC + _checksum(name, body) + body


def unpack(name: str, data: bytes) -> memoryview:
    """Return the pickled executable in a file's contents.

    Raises:
        ValueError: The checksum does not match: the file is damaged, was renamed, or has another format.
    """
    view = memoryview(data)
    start = len(MAGIC) + _CHECKSUM
    body = view[start:]
    if len(body) < _LENGTH or data[:start] != MAGIC + _checksum(name, body):
        raise ValueError("checksum mismatch")
    return body[_LENGTH + int.from_bytes(body[:_LENGTH], "big") :]


def read_info(file: Path) -> dict[str, Any] | None:
    """Return the description of a program; None for another format or a damaged description. Raises OSError."""
    with file.open("rb") as opened:
        head = opened.read(len(MAGIC) + _CHECKSUM + _LENGTH)
        if len(head) < len(MAGIC) + _CHECKSUM + _LENGTH or not head.startswith(MAGIC):
            return None
        length = int.from_bytes(head[-_LENGTH:], "big")
        text = opened.read(length) if length <= _MOST_INFO else b""
    with suppress(ValueError):
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    return None


def scan_folder(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield the files of a folder; skips links, and files that another process removes concurrently."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield entry, entry.stat()


def remove_file(path: str | Path) -> None:
    """Remove a file; ignores errors: another process removed it, or will retry."""
    with suppress(OSError):
        os.unlink(path)


def _checksum(name: str, body: bytes | memoryview) -> bytes:
    """Return a checksum of name and contents: a file that was copied or renamed is rejected."""
    digest = hashlib.sha256(f"{name}\0".encode())
    digest.update(body)
    return digest.digest()
