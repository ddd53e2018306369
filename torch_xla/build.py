"""Build the native libraries ahead of the first use: ``torch-xla build``, or ``python -m torch_xla.build``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_xla._engine.base import command_line

__all__ = ["main"]

_HELP = """\
Build the native libraries ahead of the first use: the recorder (a C++ extension of torch), the library of ATen's CPU
kernels that CPU programs call, and the one with which `import torch` alone offers xla.

Run it where a compiler is installed, once per environment: when an image is built, or before many processes start. It
needs torch and a C++ compiler, but no device. The libraries are stored in the cache folder (TORCH_XLA_CACHE_DIR); a
machine to which that folder is copied needs no compiler.

exit codes:
  0  all libraries are available
  1  a library cannot be built; the message names what is missing
  2  the command line is wrong
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP)
    parser.add_argument(
        "--into-package",
        action="store_true",
        help="also copy the libraries beside their sources, to build a wheel from them",
    )
    return parser


def main(argv: Sequence[str], prog: str = "python -m torch_xla.build") -> int:
    """Build the libraries that are missing, print the path of each, and return the exit code.

    Args:
      argv: arguments after the command's name; default: those of the process.
      prog: name of the command in messages.
    """
    options = make_parser(prog).parse_args(argv)
    from torch_xla._engine.cpu_backend import library  # imports torch, which --help does not need
    from torch_xla._engine.recorder import build, device_guard_library, toolchain

    try:
        build.load_recorder()  # an extension that cannot be imported does not count as built
        guard = device_guard_library.device_guard_extension()
        for extension in (build.recorder_extension(), library.kernel_extension(), guard):
            path = build.build_or_find(extension)
            print(build.store_in_package(extension, path) if options.into_package else path)
    except toolchain.RecorderBuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
