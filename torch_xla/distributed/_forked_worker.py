"""Main program of a worker of torch_xla.distributed.run: runs a script or a module as ``python`` would run it.

The arguments are ``script`` or ``module``, its path or name, and its arguments.
"""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys

from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat import process_exit


def _prepare(kind: str, name: str, arguments: list[str]) -> None:
    """Set what ``python -u script.py`` or ``python -u -m module`` sets, and what changed since the modules' import."""
    sys.argv = [name, *arguments]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=True)
    if not sys.flags.safe_path:
        first = os.getcwd() if kind == "module" else os.path.dirname(name)
        is_launchers = sys.path[:1] == [os.getcwd()]  # the launcher is run with -m
        sys.path[: int(is_launchers)] = [first]
    settings.reload()  # torchelastic sets the rank in the environment
    process_exit.run_exit_functions_of_child()


def main() -> None:
    """Run the command line. An exception is printed here, and then ends the process in torchelastic.

    torchelastic keeps a worker that has returned until all workers of the host have, and waits forever for one that
    exits with code 0. So this returns for such a script, too, after the exit functions: other ranks may wait in a
    collective for a process that has not left the job.
    """
    kind, name, *arguments = sys.argv[1:]
    _prepare(kind, name, arguments)
    try:
        if kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    process_exit.exit_like_main_process()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the script would outlive it: the launcher would wait


if __name__ == "__main__":
    main()
