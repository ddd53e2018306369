"""``python -m torch_xla.build``: compiles the recorder ahead, which the first import would do otherwise.

Run it where a compiler is, once for each environment: in the recipe of an image, or before many processes start. It
needs torch and a C++ compiler, and no device. The build is kept in the cache folder (TORCH_XLA_CACHE_DIR); where the
folder goes along, the machine that runs the script needs no compiler.

exit code   0   the recorder is there
            1   it cannot be built; the message says what is missing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Builds what is not built yet, and prints where it is. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into-package",
        action="store_true",
        help="copy it beside its sources as well, where a wheel is made from them",
    )
    options = parser.parse_args(argv)
    from torch_xla._engine.recorder import build, toolchain  # imports torch, which --help does without

    try:
        library = Path(str(build.load_recorder().__file__))
    except toolchain.RecorderBuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(build.store_in_package(build.the_recorder(), library) if options.into_package else library)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
