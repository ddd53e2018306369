"""Stands in for ``python`` in commands: runs them in a fork of the server at $TORCH_XLA_TEST_SERVER, if possible.

    python -IS forked_python.py (-c CODE | -m MODULE | FILE) [ARGUMENT ...]

The fork has the descriptors 0 to 2 of this process, its folder, its environment and its network namespace. It gets the
signals that this process gets and ends when it ends, and this process has its exit status. It imports few modules, to
start fast. See scripts.PYTHON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # signals are blocked until the fork exists
    environment = dict(os.environ)
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    request = json.dumps({"words": sys.argv[1:], "folder": os.getcwd(), "environment": environment}).encode()
    for which in ("", ".libraries"):  # scripts.addresses
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(environment["TORCH_XLA_TEST_SERVER"] + which)
        socket.send_fds(server, [request], [0, 1, 2, network])
        answer = server.recv(100).decode().strip()
        if answer != "no":
            break
    if answer == "no":  # a variable changes how libraries are imported
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    child = int(answer)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = int(server.recv(100))
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
