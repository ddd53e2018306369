"""Which C++ compiler this machine has; imports nothing, so that what is missing can be said before anything else."""

from __future__ import annotations

import os
import shlex
import shutil

INSTALL_COMPILER = "apt-get install g++"


def find_compiler() -> list[str] | None:
    """The command line of the C++ compiler: $CXX, else c++, else g++. None if there is none."""
    for command in [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def missing_compiler_message() -> str:
    """What was looked for where find_compiler has found none."""
    asked = os.environ.get("CXX")
    return f"the compiler that CXX names ({asked})" if asked else "a C++ compiler"
