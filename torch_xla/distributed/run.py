"""torchrun with workers that are forked from a process which has already imported torch, jax and torch_xla.

    python -m torch_xla.distributed.run [options of torchrun] [--preload MODULE ...] train.py ARGS

A job that restarts, because a host was lost or has come back, waits for the imports of its processes. Here, each
host's launcher imports the modules once, in the fork server of Python's multiprocessing, and each worker, also of a
restart, is a fork of it. The workers share the memory of what was imported.

    launcher ──starts──► fork server: imports the modules; starts no backend and no thread
       │                     │ forks, for each attempt
       └──── torchelastic ───┴──► workers: run the script as __main__, with the environment that torchelastic sets

The modules must not start threads or devices when they are imported. A change of an installed module takes effect when
the launcher starts again, not when a worker does. A script ends by returning, by an exception or by ``sys.exit``:
torchelastic does not notice a worker that ends by ``os._exit(0)``.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import record

from torch_xla.distributed import _forked_worker

__all__ = ["get_args_parser", "main"]

#: What a script that trains imports, directly or when it creates an optimizer (dynamo), a mesh or a checkpoint.
PRELOADED = (
    "torch_xla.distributed._forked_worker",
    "torch.distributed.run",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.utils.data",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.spmd",
    "torch_xla.distributed.xla_backend",
    "torch_xla.experimental.distributed_checkpoint",
)


def get_args_parser() -> argparse.ArgumentParser:
    """Return torchrun's parser with the option ``--preload``."""
    parser: argparse.ArgumentParser = torchrun.get_args_parser()
    parser.prog = "python -m torch_xla.distributed.run"
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module to import before the workers are forked, besides torch, jax and torch_xla; may be repeated",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: the launcher of one host.

    Args:
      arguments: arguments after the command's name; default: those of the process.

    Raises:
      SystemExit: the options are not valid.
      torch.distributed.elastic.multiprocessing.errors.ChildFailedError: a worker failed more often than allowed.
    """
    parser = get_args_parser()
    options = parser.parse_args(arguments)
    if options.no_python:
        parser.error("--no-python: the workers are forks of a Python process; use torchrun for another program")
    kind = "module" if options.module else "script"
    name = options.training_script if options.module else str(Path(options.training_script).resolve())
    options.training_script_args = [kind, name, *options.training_script_args]
    options.training_script, options.module = _forked_worker.__file__, False
    options.run_path, options.start_method = True, "forkserver"
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *options.preload])
    record(torchrun.run)(options)


if __name__ == "__main__":
    main()
