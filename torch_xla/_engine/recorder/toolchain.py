"""The C++ toolchain: identifies the compiler, runs a build, and explains failures.

A child process compiles, and inherits the caller's lock: if the caller is killed, the child finishes the build for
other waiting processes; if both are killed, the lock is released.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from torch_xla._engine.base.private_folder import is_trusted_file
from torch_xla._engine.base.status_line import StatusLine
from torch_xla._engine.compat import versions
from torch_xla._engine.recorder.prebuilt import FLAGS

_POLL = 0.1  # seconds between checks of the child
_ERROR_LINES = 12  # lines of compiler output to show: the first error and its context

# Runs in a separate process, so that torch.utils.cpp_extension and the compiler's environment do not affect the user's
# process, and so that the library is test-loaded before it is moved to its final path.
_CHILD = """
import json, os, shutil, sys
job = json.loads(sys.argv[1])
os.umask(os.umask(0o077) | 0o022)
sys.path[:] = job["path"]
from torch.utils.cpp_extension import load
load(
    job["name"], job["sources"], extra_cflags=job["flags"], build_directory=job["folder"],
    extra_include_paths=job["includes"], is_python_module=job["is_module"],
)
for file, stamp in job["stamps"]:
    info = os.stat(file)
    if stamp != [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]:
        sys.exit(f"error: {file} changed during the build; import torch_xla again")
os.replace(os.path.join(job["folder"], job["name"] + ".so"), job["target"])
shutil.rmtree(job["folder"], ignore_errors=True)
"""

# Pattern in the compiler's output -> the cause, and what to do.
_REMEDIES = (
    (r"Python\.h: No such file", "Python's headers are missing: apt-get install python3-dev"),
    (r"Killed signal|cannot allocate memory|out of memory", "out of memory: set MAX_JOBS=1"),
    (r"No space left on device", "the disk is full: free space, or set TORCH_XLA_CACHE_DIR to another folder"),
    (r"unrecognized .*std=c\+\+20|invalid value 'c\+\+20'", "this compiler lacks C++20: install g++ 10 or newer"),
)  # fmt: skip


class RecorderBuildError(RuntimeError):
    """The recorder cannot be built. The message states what is missing and how to install it."""


def compiler_fingerprint(compiler: list[str]) -> str:
    """Return an id of this compiler that changes when it is upgraded, without running it."""
    parts = []
    for word in compiler:  # a wrapper such as ccache takes the compiler as an argument
        path = shutil.which(word)
        stat = os.stat(path) if path else None
        parts.append(f"{os.path.realpath(path)}:{stat.st_size}:{stat.st_mtime_ns}" if path and stat else word)
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).hexdigest()


def _unity_sources(units: list[Path], folder: Path) -> list[Path]:
    """Write two files that include all units, and return them: a unity build with one file per core.

    torch's headers take longer to compile than all our code, so they are compiled twice, not once per unit. Units that
    include pybind11 are in a separate file, because its headers are the largest.
    """
    includes_python = {unit: "pybind11" in unit.read_text() for unit in units}
    sources = []
    for name, with_python in (("python.cpp", True), ("units.cpp", False)):
        lines = [f'#include "{unit}"\n' for unit in units if includes_python[unit] == with_python]
        if lines:
            (folder / name).write_text("".join(lines))
            sources.append(folder / name)
    return sources


@dataclass(frozen=True)
class BuildJob:
    """The inputs of one build of ``library``. If ``is_module``, it is a Python module named as the file."""

    units: list[Path]
    library: Path
    what: str  # name of the library in messages
    is_module: bool = True
    includes: tuple[str, ...] = ()
    stamps: dict[Path, tuple[int, ...] | None] = field(
        default_factory=dict
    )  # of the sources hashed in the library's path


def compile_extension(work: BuildJob, compiler: list[str], lock: int) -> None:
    """Build the library atomically: it exists completely afterwards, or not at all.

    The caller holds the lock of descriptor ``lock``. Raises RecorderBuildError.
    """
    library = work.library
    for leftover in library.parent.glob("tmp-*"):  # from builds that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    path = _path_with_ninja(work.what)
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=library.parent, ignore_cleanup_errors=True) as folder:
        sources = _unity_sources(work.units, Path(folder))
        job = {
            "name": library.stem,
            "sources": [str(path) for path in sources],
            "flags": FLAGS,
            "includes": work.includes,
            "stamps": [(str(file), stamp) for file, stamp in work.stamps.items()],
            "is_module": work.is_module,
            "folder": folder,
            "target": str(library),
            "path": sys.path,
        }
        environment = os.environ | {"CXX": _compiler_wrapper_script(compiler, Path(folder)), "PATH": path}
        command = [sys.executable, "-W", "ignore", "-c", _CHILD, json.dumps(job)]
        progress = _Progress(Path(folder), len(sources) + 1)
        output = _run(work.what, command, environment, lock, progress)
    if not is_trusted_file(library):
        raise RecorderBuildError(_explain(output or "(no output: the build process was killed)", work.what))


def _compiler_wrapper_script(compiler: list[str], folder: Path) -> str:
    """Return $CXX: torch requires one program name, so a command of several words (ccache g++) becomes a script."""
    if len(compiler) == 1:
        return compiler[0]
    script = folder / "c++"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def _path_with_ninja(what: str = "recorder") -> str:
    """Return $PATH with the folder of a pip-installed ninja prepended, which a non-activated environment lacks.

    Raises RecorderBuildError if ninja is not found.
    """
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if importlib.util.find_spec("ninja") is not None:
        import ninja

        path = os.pathsep.join([ninja.BIN_DIR, path])
    if shutil.which("ninja", path=path) is None:
        raise RecorderBuildError(f"torch_xla cannot build its {what}: ninja was not found.\n  pip install ninja")
    return path


@dataclass(frozen=True)
class _Progress:
    """The progress of a build: the files that the compiler has written to its folder, of their final number."""

    folder: Path
    total: int

    def done(self) -> int:
        """Return the number of files that exist: objects, then the library."""
        try:
            return min(self.total, sum(name.endswith((".o", ".so")) for name in os.listdir(self.folder)))
        except OSError:  # the child has moved the library and removed the folder
            return self.total


def _run(what: str, command: list[str], environment: dict[str, str], lock: int, progress: _Progress) -> str:
    """Run the child process, showing its progress, and return its output. An exception here kills the child."""
    with (
        tempfile.TemporaryFile() as output,
        StatusLine(f"building the {what} (once)") as status,
    ):
        # The output goes to a file, not a pipe: the child must be able to outlive this process.
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[lock]
        )
        try:
            while child.poll() is None:
                status.show(progress.done(), progress.total)
                time.sleep(_POLL)
        finally:
            child.kill()
            child.wait()
        status.end = "built" if child.returncode == 0 else "failed"
        output.seek(0)
        return output.read().decode(errors="replace")


def _explain(output: str, what: str = "recorder") -> str:
    """Return the message of a failed build: the compiler's first error and, for known errors, what to do."""
    lines = [line for line in output.splitlines() if not line.startswith(("ninja:", "[", "FAILED:"))]
    is_error = re.compile(r"\berror:|undefined (reference|symbol)|Killed|No such file")
    first = next((i for i, line in enumerate(lines) if is_error.search(line)), max(0, len(lines) - _ERROR_LINES))
    shown = "\n".join(f"  {line}" for line in lines[first : first + _ERROR_LINES])
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, output, re.IGNORECASE)), None)
    advice = [line for line in (remedy, versions.untested_torch_hint()) if line]
    return "\n  ".join([f"torch_xla cannot build its {what}: the build failed.\n{shown}", *advice])
