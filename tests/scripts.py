"""Scripts in processes of their own: forked from one that has imported everything, or in fresh interpreters."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-W", "error", "-c"]

#: Before tests run: what they import sets variables for children (torch._inductor its folder) that no user has.
_AT_FIRST = dict(os.environ)

#: Variables that libraries read when they are loaded, in C, where nobody sees it.
_READ_IN_C = ("DNNL_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL", "NPY_", "OMP_", "ONEDNN_",
              "OPENBLAS_", "PYTHON", "PYTORCH_", "TF_", "TORCH_CPP_", "TORCH_SHOW_", "TZ")  # fmt: skip

#: What importing looks at for a bound, and reads again when it is needed.
_READ_AGAIN = {"CPU_NUM_DEVICES"}  # room for eight devices is made in any case


class Server:
    """A fork_server.py of this process; it ends with it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = f"import sys; sys.path.insert(1, {str(ROOT / 'tests')!r}); import fork_server; del sys.path[1]"
        self._process = subprocess.Popen(
            [*COMMAND, f"{start}; fork_server.main({theirs.fileno()})"],
            env=environment,
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        said = self._socket.recv(1 << 20)
        assert said, f"{COMMAND} cannot import torch_xla"
        self._read = set(json.loads(said)) - _READ_AGAIN
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the server; children that run go on to their ends."""
        self._socket.close()
        self._process.wait()

    def differences(self, environment: dict[str, str]) -> dict[str, str | None] | None:
        """What to change in the server's environment to have this; None if importing depends on one of them."""
        names = {name for name, _ in environment.items() ^ self.environment.items()}
        if any(name in self._read or name.startswith(_READ_IN_C) for name in names):
            return None
        return {name: environment.get(name) for name in names}

    def run(self, code: str, changes: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
        pipes = [os.pipe() for _ in range(3)]  # stdout, stderr, and the exit code
        request = json.dumps({"code": code, "folder": os.getcwd(), "environment": changes})
        try:
            socket.send_fds(self._socket, [request.encode()], [write for _, write in pipes])
        finally:
            for _, write in pipes:
                os.close(write)
        out, err, code_text = _read_all([read for read, _ in pipes])
        assert code_text, "the fork server has ended"
        return subprocess.CompletedProcess([*COMMAND, code], int(code_text), out, err)


def _read_all(pipes: list[int]) -> list[str]:
    """What is written to each of the pipes, whose other ends are then closed."""
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
            # A copy of all variables, which importing takes, counts as looking at each that is set; XLA_FLAGS is not
            # looked at before the backend starts.
            _servers.append(Server({n: v for n, v in environment().items() if n != "XLA_FLAGS"}))
    return _servers[0]


def environment() -> dict[str, str]:
    """This process's at first, without what says how torch_xla is. XLA compiles quickly in scripts, too."""
    not_theirs = ("XLA_", "PJRT_", "CPU_NUM", "PYTEST_")
    kept = {n: v for n, v in _AT_FIRST.items() if not n.startswith(not_theirs) or n == "XLA_FLAGS"}
    return kept | {"PYTHONPATH": str(ROOT)}


def run(code: str, fresh: bool, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the code as ``python -W error -c`` does, with the variables and without those of XLA that are set here.

    In an interpreter that is started for it if it is to be ``fresh``, or where a variable says how to import.
    """
    variables = environment() | env
    changes = None if fresh else _server().differences(variables)
    if changes is None:
        return subprocess.run([*COMMAND, code], env=variables, capture_output=True, text=True)
    return _server().run(code, changes)
