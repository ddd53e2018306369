"""``python -m torch_xla.build``: compiles ahead what the first import and the first program would.

That is the recorder, and torch's own kernels as programs on the CPU call them.

Run it where a compiler is, once for each environment: in the recipe of an image, or before many processes start. It
needs torch and a C++ compiler, and no device. The builds are kept in the cache folder (TORCH_XLA_CACHE_DIR); where the
folder goes along, the machine that runs the script needs no compiler.

exit code   0   both are there
            1   one cannot be built; the message says what is missing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Builds what is not built yet, and prints where each is. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into-package",
        action="store_true",
        help="copy them beside their sources as well, where a wheel is made from them",
    )
    options = parser.parse_args(argv)
    from torch_xla._engine.cpu_backend import library  # imports torch, which --help does without
    from torch_xla._engine.recorder import build, toolchain

    try:
        build.load_recorder()  # a build that cannot be imported is none
        for extension in (build.recorder_extension(), library.kernel_extension()):
            path = build.build_or_find(extension)
            print(build.store_in_package(extension, path) if options.into_package else path)
    except toolchain.RecorderBuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
