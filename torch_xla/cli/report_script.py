"""The process of ``torch-xla report``: runs the script as ``python script.py`` does, then prints the report."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from torch_xla import debug
from torch_xla.cli import report_arguments


def main(argv: Sequence[str]) -> int:
    """Run the script, print or write the report, and return the script's exit code."""
    options = report_arguments.parse("torch-xla report", argv)
    code = _run_script(options)
    sys.stdout.flush()
    report = debug.report(options.last)
    if options.output is None:
        print(f"\n{report}")
        return code
    try:
        print(f"report: {report.save(options.output)}")
    except OSError as error:
        print(f"torch-xla report: cannot write {options.output}: {error}\n\n{report}", file=sys.stderr)
        return code or 1
    return code


def _run_script(options: argparse.Namespace) -> int:
    """Run the script to its end and return its exit code."""
    sys.argv = [options.script, *options.args]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as end:
        return _exit_code(end.code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _print_traceback(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    """Return the exit code of ``sys.exit(code)``; prints a message, as Python does."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _print_traceback(error: Exception) -> None:
    """Print the traceback as Python would, without the frames that started the script."""
    trace = error.__traceback__
    starters = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in starters:
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        trace = None
    traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
