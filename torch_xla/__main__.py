"""``python -m torch_xla``: the same as the console script ``torch-xla``."""

import sys

from torch_xla.cli import main

if __name__ == "__main__":
    sys.exit(main())
