"""``python -m torch_xla.distributed.xla_dist [options] -- command``: one job on several machines."""

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
    """Runs the job of parsed options and returns its exit code: the worst of its workers, 0 if all ended well.

    With ``--cluster`` it does not return: this process becomes the command. Raises ValueError for options that fit no
    job. 126: the workers could not be found or used. 130: Ctrl-C.
    """
    job = parse_job(options)
    try:
        return cluster.exec_job(job) if job.cluster else launch(job)
    except LaunchError as error:
        print(f"xla_dist: {error}", file=sys.stderr)
        return CANNOT_START
    except KeyboardInterrupt:
        print("xla_dist: interrupted; all workers have been ended", file=sys.stderr)
        return 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = get_args_parser()
    options = parser.parse_args(arguments)
    try:
        return resolve_and_execute(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
