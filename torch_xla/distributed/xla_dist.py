"""Run one command on several hosts as one job: ``python -m torch_xla.distributed.xla_dist [options] -- command``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_xla.distributed.launcher import cluster
from torch_xla.distributed.launcher.launch import CANNOT_START, launch
from torch_xla.distributed.launcher.options import get_args_parser, parse_job
from torch_xla.distributed.launcher.workers import LaunchError

__all__ = ["get_args_parser", "main", "resolve_and_execute"]


def resolve_and_execute(options: argparse.Namespace) -> int:
    """Run the job of parsed options and return its exit code: the worst of its workers, 0 if all succeeded.

    With ``--cluster`` it does not return: this process execs the command. Other exit codes: 126: workers could not be
    found or used; 130: Ctrl-C.

    Args:
      options: the options of get_args_parser.

    Raises:
      ValueError: the options are inconsistent.
    """
    job = parse_job(options)
    try:
        return cluster.exec_job(job) if job.cluster else launch(job)
    except LaunchError as error:
        print(f"xla_dist: {error}", file=sys.stderr)
        return CANNOT_START
    except KeyboardInterrupt:
        print("xla_dist: interrupted; all workers have been terminated", file=sys.stderr)
        return 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
      arguments: arguments after the command's name; default: those of the process.
    """
    parser = get_args_parser()
    options = parser.parse_args(arguments)
    try:
        return resolve_and_execute(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
