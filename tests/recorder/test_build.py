"""The recorder build on first import, with a stand-in extension that compiles in about a second."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
GOOD = """
#include <Python.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "standin", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_standin() { return PyModule_Create(&def); }
"""
# A compiler that writes its process id and then waits while the file "hold" exists.
SLOW_COMPILER = """#!/bin/sh
case "$*" in *" -c "*) echo $$ > {folder}/compiling; while [ -e {folder}/hold ]; do sleep 0.05; done;; esac
exec c++ "$@"
"""

# One importing process. It replaces the packages' __init__, which import jax, and torch itself, so that ten of them
# start within the same tenth of a second and race; the build's child process uses the real torch.
WORKER = """
import sys, time, types
from pathlib import Path
root, sources, cache, version = sys.argv[1:]
for name in ("torch_xla", "torch_xla._engine", "torch_xla._engine.recorder"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root + "/" + name.replace(".", "/")]
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].__version__ = version
from torch_xla._engine.recorder.build import Extension, load_extension
start = time.perf_counter()
module = load_extension(Extension("standin", Path(sources), Path(cache)))
print(f"{time.perf_counter() - start:.4f}", "torch.utils.cpp_extension" in sys.modules, module.__file__)
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with the sources of a buildable extension named ``standin``."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "standin.cpp").write_text(GOOD)
    return folder


@dataclass(frozen=True)
class Built:
    """A cache with one build of the sources: its library, and the output of the build."""

    cache: Path
    library: Path
    said: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One build for tests to inspect and copy: a build takes three seconds."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "csrc").mkdir()
    (folder / "csrc" / "standin.cpp").write_text(GOOD)
    code, out, err = load(folder / "csrc", folder / "cache")
    assert code == 0, err
    return Built(folder / "cache", Path(out.split()[-1]), err)


@pytest.fixture
def copied(built: Built, cache: Path) -> Path:
    """Copy the build to ``cache``; return the library's path in it."""
    shutil.copytree(built.cache, cache)
    return cache / built.library.relative_to(built.cache)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder that is empty at first, and must contain no partial build at the end."""
    yield tmp_path / "cache"
    assert not list(tmp_path.glob("cache/**/tmp-*"))


def start(sources: Path, cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Start an importing process in a separate process group."""
    command = [sys.executable, "-c", WORKER, str(ROOT), str(sources), str(cache), torch.__version__]
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def load(sources: Path, cache: Path, **environment: str) -> tuple[int, str, str]:
    """Import the stand-in in a new process."""
    return finish(start(sources, cache, **environment))


def without_tools(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no program is found."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    return {"PATH": str(tmp_path / "bin"), "CXX": ""}


def wait_for(condition: object, seconds: float = 60) -> None:
    """Wait until ``condition()`` is true. Fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_ten_processes_build_once(sources: Path, cache: Path) -> None:
    results = [finish(process) for process in [start(sources, cache) for _ in range(10)]]
    assert [code for code, _, _ in results] == [0] * 10, results
    assert sum("building the recorder" in err for _, _, err in results) == 1
    assert sum("waiting for another process" in err for _, _, err in results) >= 1
    assert len({out.split()[-1] for _, out, _ in results}) == 1  # all processes loaded the same file


def test_cached_import_is_fast_and_silent(sources: Path, cache: Path, copied: Path) -> None:
    runs = [load(sources, cache) for _ in range(3)]
    assert [(code, err) for code, _, err in runs] == [(0, "")] * 3
    assert min(float(out.split()[0]) for _, out, _ in runs) < 0.05
    assert all(out.split()[1] == "False" for _, out, _ in runs)  # torch.utils.cpp_extension is not imported


def test_changed_source_is_rebuilt(sources: Path, cache: Path, copied: Path) -> None:
    (sources / "more.h").write_text("// a header counts too\n")
    code, out, err = load(sources, cache)
    assert code == 0 and Path(out.split()[-1]) != copied, err


def test_status_is_a_line_at_the_start_and_one_at_the_end(built: Built) -> None:
    lines = built.said.splitlines()
    assert len(lines) == 2
    assert lines[0] == "torch_xla: building the recorder (once) ..."
    assert lines[1].startswith(lines[0] + " built after ")


def test_progress_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts files, is written once a second at most, and the last text covers the bar."""
    from torch_xla._engine.base import status_line

    class Terminal(io.StringIO):
        isatty = lambda self: True

    now = [0.0]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", Terminal())
    with status_line.StatusLine("building") as status:
        for tenth in range(25):
            now[0] = tenth / 10
            status.show(done=tenth // 10, total=4)
        status.end = "built"
    shown = sys.stderr.getvalue().split("\r")
    assert shown == [
        "",
        "torch_xla: building [--------------------] 0/4 files, 0 s",
        "torch_xla: building [#####---------------] 1/4 files, 1 s",
        "torch_xla: building [##########----------] 2/4 files, 2 s",
        f"{'torch_xla: building ... built after 2 s':<57}\n",
    ]


def test_progress_counts_files(tmp_path: Path) -> None:
    from torch_xla._engine.recorder import toolchain

    progress = toolchain._Progress(tmp_path / "build", 3)
    progress.folder.mkdir()
    assert progress.done() == 0
    for name in ("units.o", "units.cpp", "build.ninja", "recorder.so"):
        (progress.folder / name).touch()
    assert progress.done() == 2
    shutil.rmtree(progress.folder)
    assert progress.done() == 3  # the library has been moved


def test_compiler_of_several_words(sources: Path, cache: Path) -> None:
    """CXX="ccache g++", for example: torch treats the value of CXX as the name of one program."""
    code, _, err = load(sources, cache, CXX="env LC_ALL=C c++")
    assert code == 0, err


def test_no_compiler(sources: Path, cache: Path, tmp_path: Path) -> None:
    code, _, err = load(sources, cache, **without_tools(tmp_path))
    assert code == 1
    assert "RecorderBuildError: torch_xla cannot build its recorder: a C++ compiler was not found." in err
    assert err.splitlines()[-1] == "  apt-get install g++"


def test_compiler_of_cxx_is_missing(sources: Path, cache: Path) -> None:
    _, _, err = load(sources, cache, CXX="no-such-compiler -v")
    assert "the compiler that CXX names (no-such-compiler -v) was not found" in err


def test_cached_without_compiler(sources: Path, cache: Path, copied: Path, tmp_path: Path) -> None:
    code, out, err = load(sources, cache, **without_tools(tmp_path))
    assert (code, out.split()[-1], err) == (0, str(copied), "")


def test_package_contains_a_build(sources: Path, cache: Path, built: Built, tmp_path: Path) -> None:
    """A wheel with a build needs no compiler and no writable folder, and ignores an installed compiler."""
    from torch_xla._engine.recorder import build

    copy = build.store_in_package(build.Extension("standin", sources, cache), built.library)
    assert copy.is_relative_to(sources.parent)
    for environment in (without_tools(tmp_path), {}):
        code, out, err = load(sources, cache, **environment)
        assert (code, out.split()[-1:], err) == (0, [str(copy)], "")
    assert not cache.exists()


def test_a_build_of_the_package_that_cannot_be_loaded(sources: Path, cache: Path, built: Built) -> None:
    """A warning names it, and the library is built as if the package had none."""
    from torch_xla._engine.recorder import build

    copy = build.store_in_package(build.Extension("standin", sources, cache), built.library)
    copy.write_text("no library\n")
    code, out, err = load(sources, cache)
    assert code == 0 and Path(out.split()[-1]).is_relative_to(cache)
    assert "the recorder of the package cannot be loaded and will be compiled" in err and str(copy) in err


def test_builds_of_one_release_share_a_name() -> None:
    from torch_xla._engine.recorder import prebuilt

    names = {
        version: prebuilt.folder_name(version, "cpython-311-x86_64-linux-gnu", "0f")
        for version in ("2.13.0", "2.13.0+cpu", "2.13.0+cu130", "2.13.0+rocm7.1", "2.13.1", "2.13.0+git12", "2.13.0a0")
    }
    assert len(set(names.values())) == 4 and len({names[v] for v in list(names)[:4]}) == 1


def test_build_command(capsys: pytest.CaptureFixture[str]) -> None:
    from torch_xla import build
    from torch_xla._engine import recorder

    assert build.main([]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == recorder.bindings().__file__
    assert {Path(path).name for path in others} == {"_torch_xla_cpu_kernels.so", "_torch_xla_device_guard.so"}
    assert all(Path(path).is_file() for path in others)


def test_no_ninja(sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch_xla._engine.recorder import toolchain

    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(toolchain.RecorderBuildError, match=r"ninja was not found.\n  pip install ninja"):
        toolchain._path_with_ninja()


def test_failing_source_shows_the_first_error(sources: Path, cache: Path) -> None:
    (sources / "standin.cpp").write_text(GOOD + "int f() { return undeclared_name; }\n")
    code, _, err = load(sources, cache)
    message = err[err.index("RecorderBuildError:") :].splitlines()
    assert code == 1
    assert "error: " in message[1] and "undeclared_name" in message[1]
    assert len(message) < 15
    assert "failed after" in err


def test_failed_build_with_an_untested_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_xla._engine.recorder import toolchain

    failed = "units.cpp:7:11: error: 'resize_output' has not been declared in 'at::native'"
    assert "not tested" not in toolchain._explain(failed)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    *_, last = toolchain._explain(failed).splitlines()
    assert last.startswith("  torch 2.99.0 was not tested with this torch_xla (tested: torch 2.11 to 2")


def test_library_that_cannot_be_loaded_is_not_stored(sources: Path, cache: Path) -> None:
    (sources / "standin.cpp").write_text(GOOD + "int gone();\nint x = gone();\n")
    for _ in range(2):
        code, _, err = load(sources, cache)
        assert code == 1
        assert "undefined symbol" in err


def test_read_only_cache(sources: Path, cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder should be")
    _, _, err = load(sources, cache)
    assert "RecorderBuildError: torch_xla cannot store its recorder" in err
    assert "TORCH_XLA_CACHE_DIR" in err


@pytest.fixture
def held(sources: Path, cache: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process during a build; its compiler continues when the file tmp_path/hold is removed."""
    compiler = tmp_path / "slow-g++"
    compiler.write_text(SLOW_COMPILER.format(folder=tmp_path))
    compiler.chmod(0o755)
    (tmp_path / "hold").touch()
    process = start(sources, cache, CXX=str(compiler))
    wait_for(lambda: (tmp_path / "compiling").exists() and (tmp_path / "compiling").read_text().strip())
    yield process
    (tmp_path / "hold").unlink(missing_ok=True)
    process.communicate()


def test_killed_build_does_not_block_the_next_one(
    sources: Path, cache: Path, tmp_path: Path, held: subprocess.Popen[str]
) -> None:
    os.killpg(held.pid, signal.SIGKILL)
    os.kill(
        int((tmp_path / "compiling").read_text()), signal.SIGKILL
    )  # ninja starts compilers in a separate process group
    assert list(cache.glob("**/tmp-*"))  # the partial build
    (tmp_path / "hold").unlink()
    code, _, err = load(sources, cache, CXX=str(tmp_path / "slow-g++"))
    assert code == 0, err
    assert "building the recorder" in err


def test_build_outlives_the_process_that_started_it(
    sources: Path, cache: Path, tmp_path: Path, held: subprocess.Popen[str]
) -> None:
    os.kill(held.pid, signal.SIGKILL)
    waiting = start(sources, cache, CXX=str(tmp_path / "slow-g++"))
    time.sleep(1)
    assert waiting.poll() is None  # the build still holds the lock
    (tmp_path / "hold").unlink()
    code, _, err = finish(waiting)
    assert code == 0, err
    assert "waiting for another process" in err
    assert "building the recorder" not in err
