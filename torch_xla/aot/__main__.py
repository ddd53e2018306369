"""Entry point of ``python -m torch_xla.aot``; see command.py."""

import sys

from torch_xla.aot import command

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
