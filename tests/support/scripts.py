"""Scripts in processes of their own: forked from one that has imported everything, or in fresh interpreters."""

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
COMMAND = [sys.executable, "-W", "error", "-c"]

#: Before tests run: what they import sets variables for children (torch._inductor its folder) that no user has.
_AT_FIRST = dict(os.environ)

#: What is not looked at before the first device, or the first step.
_READ_LATE = {"XLA_FLAGS", "TORCH_XLA_STORM", "TORCH_XLA_FIRST_RUN"}

#: Stands for sys.executable in the command of a program that imports torch_xla: a launcher may start it, too. Needs
#: ``server_variables`` in its environment.
PYTHON = [sys.executable, "-IS", str(ROOT / "tests" / "support" / "forked_python.py")]


def addresses(server: str) -> list[str]:
    """Where forks are asked for: of a process that has imported torch_xla, then of one that has only its libraries."""
    return [server, f"{server}.libraries"]


def _door(address: str) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(address)
    door.listen(64)
    return door


class Server:
    """A fork_server.py of this process; it ends with it. ``address`` is where it listens."""

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
        """Ends the server; children that run go on to their ends."""
        self._alive.close()
        self._process.wait()
        self._folder.cleanup()

    def run(self, code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
        """Runs the code in a fork; None if importing libraries depends on a variable that is different."""
        request = {"words": [*COMMAND[1:], code], "folder": os.getcwd(), "environment": environment}
        found = (self._ask(address, request) for address in addresses(self.address))
        return next((done for done in found if done is not None), None)

    def _ask(self, address: str, request: dict[str, Any]) -> subprocess.CompletedProcess[str] | None:
        """Runs the request in a fork of who listens there; None if that cannot be."""
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
    """What is written to each of the pipes until its other end is closed; closes them."""
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
    with _starting:  # scripts are run by several threads
        if not _servers:
            # A copy of all variables, which importing takes, counts as looking at each that is set.
            _servers.append(Server({n: v for n, v in environment().items() if n not in _READ_LATE}))
    return _servers[0]


#: What importing jax writes where its CUDA plugin is installed and finds no driver.
_JAX_IMPORT = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\n"
    r"|I\d{4} .*Could not find cuda drivers on your machine, GPU will not be used\.\n"
)


def own_words(stderr: str) -> str:
    """What a process has written besides that."""
    return _JAX_IMPORT.sub("", stderr)


def environment() -> dict[str, str]:
    """This process's at first, without what says how torch_xla is. In scripts, too, XLA compiles quickly and anew."""
    not_theirs = ("XLA_", "PJRT_", "CPU_NUM", "PYTEST_")
    kept = {n: v for n, v in _AT_FIRST.items() if not n.startswith(not_theirs) or n == "XLA_FLAGS"}
    return kept | {"PYTHONPATH": str(ROOT), "XLA_PERSISTENT_CACHE_PATH": ""}


def run(code: str, fresh: bool, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the code as ``python -W error -c`` does, with the variables and without those of XLA that are set here.

    In an interpreter that is started for it if it is to be ``fresh``, or where a variable says how to import torch.
    """
    variables = environment() | env
    done = None if fresh else _server().run(code, variables)
    if done is None:
        done = subprocess.run([*COMMAND, code], env=variables, capture_output=True, text=True)
    done.stderr = own_words(done.stderr)
    return done


def server_variables() -> dict[str, str]:
    """What PYTHON needs in its environment, to be more than python: the server, and what it was started with."""
    started_with = {name: _AT_FIRST[name] for name in ("PATH",) if name in _AT_FIRST}
    return {"TORCH_XLA_TEST_SERVER": _server().address, "PYTHONPATH": str(ROOT), **started_with}
