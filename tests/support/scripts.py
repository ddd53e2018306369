"""Runs scripts in separate processes: forks of one that has imported everything, or new interpreters."""

from __future__ import annotations

import atexit
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_WARNINGS = ["-W", "error"]
if sys.version_info[:3] == (3, 13, 0):  # torch's tracer warns of that patch release
    _WARNINGS += ["-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"]
COMMAND = [sys.executable, *_WARNINGS, "-c"]

#: Saved before tests run: imports set variables for children that users do not have (torch._inductor's folder).
_AT_FIRST = dict(os.environ)

#: Variables that are not read before the first device, or the first step.
_READ_LATE = {"XLA_FLAGS", "TORCH_XLA_COMPILE_POLICY"}

#: Replaces sys.executable in the command of a program that imports torch_xla; launchers may start it, too. Needs
#: ``server_variables`` in its environment.
PYTHON = [sys.executable, "-IS", str(ROOT / "tests" / "support" / "forked_python.py")]


def addresses(server: str) -> list[str]:
    """Return the addresses of the fork servers: with torch_xla imported, then with torch and jax only."""
    return [server, f"{server}.libraries"]


def _door(address: str) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(address)
    door.listen(64)
    return door


class Server:
    """A fork_server.py process that ends with this process. ``address`` is its listening socket."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torch_xla-tests-")
        self.address = str(Path(self._folder.name) / "socket")
        self._alive, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed = [theirs, *(_door(address) for address in addresses(self.address))]
        numbers = [one.fileno() for one in handed]
        start = f"import sys; sys.path.insert(1, {str(ROOT)!r}); from tests.support import fork_server; del sys.path[1]"
        self._process = subprocess.Popen(
            [*COMMAND, f"{start}; fork_server.main(*{numbers})"],
            env=environment,
            cwd=ROOT,
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for one in handed:
            one.close()
        assert self._alive.recv(1 << 20), f"{COMMAND} cannot import torch_xla"
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; running children continue."""
        self._alive.close()
        self._process.wait()
        self._folder.cleanup()

    def run(
        self, code: str, environment: dict[str, str], libraries: bool = False
    ) -> subprocess.CompletedProcess[str] | None:
        """Run the code in a fork as ``python -W error -c`` does, in this environment.

        The fork has imported torch and jax only if ``libraries`` is set, or if a variable changes how torch_xla is
        imported. Returns None if a variable changes how torch or jax is imported.
        """
        request = {"words": [*COMMAND[1:], code], "folder": os.getcwd(), "environment": environment}
        found = (self._ask(address, request) for address in addresses(self.address)[libraries:])
        return next((done for done in found if done is not None), None)

    def _ask(self, address: str, request: dict[str, Any]) -> subprocess.CompletedProcess[str] | None:
        """Run the request in a fork of the server at an address; None if it cannot fork for it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as told, open(os.devnull) as nothing:
            told.connect(address)
            pipes = [os.pipe() for _ in range(2)]
            try:
                streams = [nothing.fileno(), *(write for _, write in pipes)]
                socket.send_fds(told, [json.dumps(request).encode()], streams)
            finally:
                for _, write in pipes:
                    os.close(write)
            out, err, ended = _read_all([*(read for read, _ in pipes), told.detach()])
        if ended == "no\n":
            return None
        assert ended.count("\n") == 2, "the fork server has ended"
        return subprocess.CompletedProcess([sys.executable, *request["words"]], int(ended.split()[1]), out, err)


def _read_all(pipes: list[int]) -> list[str]:
    """Return what is written to each of the pipes until its other end is closed; close them."""
    chunks: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 1 << 16)
                chunks[key.fd].append(chunk)
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [b"".join(chunks[pipe]).decode() for pipe in pipes]


_servers: list[Server] = []
_starting = threading.Lock()


def _server() -> Server:
    with _starting:  # several threads run scripts
        if not _servers:
            # Importing copies all variables, which counts as reading each of them.
            _servers.append(Server({n: v for n, v in environment().items() if n not in _READ_LATE}))
    return _servers[0]


#: Messages of jax if its CUDA plugin is installed and finds no driver, of jaxlib 0.10.0 when a CPU with AVX-512 loads a
#: program that it compiled itself, and of Triton (a part of CUDA builds of torch) when an interpreter ends after an
#: exception.
_LIBRARIES = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\n"
    r"|I\d{4} .*Could not find cuda drivers on your machine, GPU will not be used\.\n"
    r"|E\d{4} .*cpu_aot_loader\.cc:\d+\] .*feature \+prefer-no-(?:gather|scatter) is not +supported on the host.*\n"
    # Only a report that names types of Triton: one of jaxlib's objects would be a fault here.
    r"|nanobind: leaked .*\n(?:nanobind: leaked .*\n| - .*\n)*?"
    r' - leaked type "triton\._C\.libtriton.*\n(?:nanobind: leaked .*\n| - .*\n)*'
    r"nanobind: this is likely caused by .*\nSee https://nanobind\.readthedocs\.io/.*\n?"
)


def own_output(stderr: str) -> str:
    """Return the output of a process without messages of jax and Triton."""
    return _LIBRARIES.sub("", stderr)


def environment() -> dict[str, str]:
    """Return this process's initial environment without torch_xla's variables, with the test flags of XLA."""
    not_theirs = ("XLA_", "PJRT_", "CPU_NUM", "PYTEST_")
    kept = {n: v for n, v in _AT_FIRST.items() if not n.startswith(not_theirs) or n == "XLA_FLAGS"}
    return kept | {"PYTHONPATH": str(ROOT), "XLA_PERSISTENT_CACHE_PATH": ""}


def run(code: str, fresh: bool, env: dict[str, str], libraries: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the code as ``python -W error -c`` does, with the variables and without those of XLA that are set here.

    Runs in a fork; in a new interpreter if it is to be ``fresh``, or if a variable changes how torch is imported. With
    ``libraries``, the fork has imported torch and jax, and not torch_xla.
    """
    variables = environment() | env
    done = None if fresh else _server().run(code, variables, libraries)
    if done is None:
        done = subprocess.run([*COMMAND, code], env=variables, capture_output=True, text=True)
    done.stderr = own_output(done.stderr)
    return done


def server_variables() -> dict[str, str]:
    """Return the variables that PYTHON needs: the server's addresses, and the environment it was started with."""
    started_with = {name: _AT_FIRST[name] for name in ("PATH",) if name in _AT_FIRST}
    return {"TORCH_XLA_TEST_SERVER": _server().address, "PYTHONPATH": str(ROOT), **started_with}
