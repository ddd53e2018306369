"""Entry point of ``python -m torch_xla.aot``; see command.py. ``plan`` as the first argument is ``torch-xla plan``."""

import os
import sys

from torch_xla.aot import command

if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:  # in a new process, which starts no engine
        os.execv(sys.executable, [sys.executable, "-m", "torch_xla", *sys.argv[1:]])
    sys.exit(command.main(sys.argv[1:]))
