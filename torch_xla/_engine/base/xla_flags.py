"""The XLA flags of this process. XLA parses XLA_FLAGS once, so programs depend on its value at that time.

    not read -> read when the backend starts or the first program key is computed -> never read again

The content of a flags file (XLA_FLAGS=PATH, --flagfile=PATH) is included.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import os
import re
import resource
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compat import debug_options

_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_LOG_PREFIX = re.compile(r"^[EF]\d{4} \S+\s+\d+ \S+\] ")
_FLAG_FILE = re.compile(r"--?flagfile[= ](\S+)")
_FORK_SECONDS = 5.0  # how long to wait for another thread that forks or opens a lock file

_lock = fork_safe_lock()  # guards the first call of _read_once


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags at the start of the backend.

    ``variables``: environment variables. ``text``: XLA_FLAGS and the content of its files. ``parsed``: a hash of XLA's
    parsed options, which applies if jax started its backend before torch_xla read the environment.
    """

    variables: dict[str, str]
    text: str
    parsed: str

    def identity(self) -> list[str]:
        """Return everything that a compiled program depends on, for its cache key."""
        return [*(f"{name}={text}" for name, text in self.variables.items()), self.text, self.parsed]

    def changed_late(self) -> list[str]:
        """Return the variables whose values have changed since they were read."""
        return [name for name, text in self.variables.items() if os.environ.get(name, "") != text]


def read() -> Flags:
    """Return the flags of this process; read them on the first call.

    Raises ValueError for flags that XLA does not know.
    """
    with _lock:  # one fork, also where the threads of replicas start
        return _read_once()


@functools.cache
def _read_once() -> Flags:
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    text = variables["XLA_FLAGS"]
    if text.strip() and (complaint := _rejection()):
        raise ValueError(
            f"environment variable XLA_FLAGS={text!r}: {complaint}\n  XLA ends the process for a flag that it does not "
            "know or cannot parse: remove it, or correct its spelling\n  See: torch-xla explain xla-flags"
        )
    parsed = hashlib.sha256(debug_options.serialize_options()).hexdigest()
    return Flags(variables, "\n".join([text, *_contents(text)]), parsed)


def _rejection() -> str:
    """Return what XLA prints before it aborts because of XLA_FLAGS; empty if it accepts them.

    XLA parses the flags in a forked process, which takes milliseconds.
    """
    with tempfile.TemporaryFile() as output, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, about forking with threads: the child only parses
        child = _fork()
        if child == 0:
            _parse_and_exit(output.fileno())
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        text = output.read().decode(errors="replace")
    return "" if os.waitstatus_to_exitcode(status) == 0 else _summary(text)


def _fork() -> int:
    """Fork. filelock, which torch imports, raises while another thread forks or opens a lock file: try again then."""
    end = time.monotonic() + _FORK_SECONDS
    while True:
        try:
            return os.fork()
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.001)


def _parse_and_exit(output: int) -> NoReturn:
    """Let XLA parse XLA_FLAGS, with its output in a file; exit with 0 unless XLA aborts."""
    try:
        faulthandler.disable()  # it would print a Python traceback
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(output, 1)
        os.dup2(output, 2)
        debug_options.serialize_options()
    finally:
        os._exit(0)


def _summary(text: str) -> str:
    """Return XLA's log lines about the flag, without the list of all flags that may follow."""
    logged = [_LOG_PREFIX.sub("", line) for line in text.splitlines() if _LOG_PREFIX.match(line)]
    found = [line.rstrip(". ") for line in logged if "Check failed" not in line]
    return "; ".join(dict.fromkeys(found)) or "XLA cannot parse it"


def _contents(text: str) -> list[str]:
    """Return the content of the files that XLA_FLAGS names: a value that does not start with a dash is a path."""
    names = _FLAG_FILE.findall(text)
    if text.strip() and not text.strip().startswith("-"):
        names.append(text.strip())
    found = []
    for name in names:
        try:
            found.append(Path(name).read_text(errors="replace"))
        except OSError:  # XLA itself reports it
            found.append("")
    return found
