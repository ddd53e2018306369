"""Find the C++ compiler of this machine. Imports nothing else, so that the doctor can report a missing compiler."""

from __future__ import annotations

import os
import shlex
import shutil

INSTALL_COMPILER = "apt-get install g++"


def find_compiler() -> list[str] | None:
    """Return the command line of the C++ compiler: $CXX, else c++, else g++. None if there is none."""
    for command in [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def missing_compiler_message() -> str:
    """Describe what find_compiler searched for when it found no compiler."""
    named = os.environ.get("CXX")
    return f"the compiler that CXX names ({named})" if named else "a C++ compiler"
