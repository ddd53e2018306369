"""Copy the files of each process to another process, its peer: a lost host is restored without the remote path."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

_CHUNK = 16 << 20  # bytes of one message

#: Name and size in bytes.
File = tuple[str, int]


@dataclass(frozen=True)
class _Chunk:
    """The bytes of a file that one message carries."""

    name: str
    start: int
    size: int


def choose_distance(hosts: Sequence[str]) -> int:
    """Return the distance from each rank to its peer: the smallest that leads all ranks to another host, else 1.

    Args:
      hosts: the host of each rank.
    """
    count = len(hosts)
    for distance in range(1, count):
        if all(hosts[rank] != hosts[(rank + distance) % count] for rank in range(count)):
            return distance
    return 1


def list_files(folder: str) -> list[File]:
    """Return the data files of a folder and their checksums."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.stat().st_size) for entry in entries if ".distcp" in entry.name]


def exchange_files(
    folder: str, files: Sequence[Sequence[File]], distance: int, group: dist.ProcessGroup
) -> OSError | None:
    """Send the files of this process to its peer, and store those of the process whose peer it is. Collective.

    Args:
      folder: has the files of this process, and receives the others.
      files: the files of each rank.
      distance: from a rank to its peer.
      group: the group of the calling thread.

    Returns:
      The first error of this process; its messages are sent and received nevertheless, as the peers wait for them.
    """
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    peer, source = (rank + distance) % count, (rank - distance) % count
    errors: list[OSError] = []
    for outgoing, incoming in itertools.zip_longest(_chunks(files[rank]), _chunks(files[source])):
        sent = None
        if outgoing is not None:
            sent = dist.isend(_read(folder, outgoing, errors), group=group, group_dst=peer)
        if incoming is not None:
            received = torch.empty(incoming.size, dtype=torch.uint8)
            dist.recv(received, group=group, group_src=source)
            _write(folder, incoming, received, errors)
        if sent is not None:
            sent.wait()
    return errors[0] if errors else None


def read_bytes(path: str, start: int, size: int) -> torch.Tensor:
    """Return bytes of a file as a tensor. Raises OSError if the file has fewer."""
    chunk = torch.empty(size, dtype=torch.uint8)
    with open(path, "rb") as file:
        file.seek(start)
        if file.readinto(chunk.numpy().data) != size:
            raise OSError(f"{path} has fewer than {start + size} bytes")
    return chunk


def _chunks(files: Sequence[File]) -> Iterator[_Chunk]:
    for name, size in files:
        for start in range(0, size, _CHUNK):
            yield _Chunk(name, start, min(_CHUNK, size - start))


def _read(folder: str, chunk: _Chunk, errors: list[OSError]) -> torch.Tensor:
    try:
        return read_bytes(os.path.join(folder, chunk.name), chunk.start, chunk.size)
    except OSError as error:
        errors.append(error)
        return torch.zeros(chunk.size, dtype=torch.uint8)


def _write(folder: str, chunk: _Chunk, values: torch.Tensor, errors: list[OSError]) -> None:
    if errors:
        return
    try:
        with open(os.path.join(folder, chunk.name), "wb" if chunk.start == 0 else "ab") as file:
            file.write(values.numpy().data)
    except OSError as error:
        errors.append(error)
