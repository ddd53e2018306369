"""Background threads at process exit: the failure of the last task is reported.

``WORKERS`` lists every place of the package that creates a thread or a pool, found in the sources, with the path of a
failure in it. The test fails for a new place until it is listed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.helpers import ROOT, run_script

#: Callables that create threads, by the last name of a call.
_MAKES_THREADS = {"Thread", "Timer", "ThreadPoolExecutor", "ThreadPool", "start_new_thread", "ProcessPoolExecutor"}

#: How a failure is reported, by module and number of places in it.
WORKERS = {
    ("_engine/execution/background_threads.py", 1): "reported at the end; the cases below",
    (
        "_engine/diagnostics/compile_progress.py",
        1,
    ): "joined by the compilation that it is shown for; only writes a line",
    ("_engine/diagnostics/profiler_spans.py", 1): "rows of a profile; torch.profiler has ended before",
    ("_engine/diagnostics/completion.py", 1): "test_program_that_fails_after_its_launch",
    (
        "_engine/compilation/persistent_cache/prefetch.py",
        1,
    ): "loads ahead; the caller loads, and raises, what this could not",
    ("_engine/data_loading/prefetch.py", 1): "get() raises in place of the batch; no batch follows the last",
    ("_engine/job/liveness.py", 1): "it terminates its process when a rank is lost",
    ("_engine/job/program_exchange.py", 1): "a process without beats is taken for dead, and another compiles",
    ("_engine/lowering/decompose.py", 1): "the caller waits for the result",
    ("_engine/parallel/watchdog.py", 1): "terminates the process itself, with a report",
    ("cli/plan/worker.py", 1): "it terminates its process when the plan's has ended",
    ("debug/profiler.py", 1): "threading.excepthook; the thread is the caller's",
    ("distributed/_parent_death.py", 1): "it terminates its process",
    ("distributed/data_parallel.py", 1): "the call waits for its threads",
    ("distributed/launcher/launch.py", 1): "the launcher waits for its pool",
    ("distributed/launcher/worker_process.py", 2): "readers and waiter of a process, which the launcher joins",
    ("doctor/device_check.py", 1): "reads a pipe; the end of the pipe is a result",
    ("utils/utils.py", 1): "the caller waits for its pool",
}

#: The same for C++.
CPP_WORKERS = {
    (
        "_engine/cpu_backend/csrc/threading/kernel_thread.cpp",
        1,
    ): "chunks of a loop; the caller takes part and waits for the others",
    ("_engine/cpu_backend/csrc/threading/openmp.cpp", 1): "its team only sleeps",
    ("_engine/recorder/csrc/graph/launch.cpp", 1): "joined, and its error raised, by its caller",
}

_CPP_THREAD = re.compile(r"std::(?:j?thread (?!::)\w+[({]|j?thread\(|async\(|vector<std::j?thread>)")


def _count_threads_made(file: Path) -> int:
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    names = [call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls]
    return sum(name in _MAKES_THREADS for name in names)


def test_each_worker_is_listed() -> None:
    package = ROOT / "torch_xla"
    counts = {str(file.relative_to(package)): _count_threads_made(file) for file in package.rglob("*.py")}
    assert {(name, count) for name, count in counts.items() if count} == set(WORKERS)
    files = [file for pattern in ("*.cpp", "*.h") for file in package.rglob(pattern)]
    threads = {str(file.relative_to(package)): len(_CPP_THREAD.findall(file.read_text())) for file in files}
    assert {(name, count) for name, count in threads.items() if count} == set(CPP_WORKERS)


PROGRAM = """
import gc; gc.unfreeze()
import atexit, os, sys, threading
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _checksummed_storage
from torch_xla.utils.closures import AsyncClosureHandler

def fail(*args):
    raise ValueError("of the last one")

def work():
    {work}

atexit.register(lambda: print("registered later"))
if __name__ == "__main__":
    work()
    print("after the call")
"""

SAVE = """_checksummed_storage._Writer.write_data = fail
    CheckpointManager(os.environ["WHERE"], save_interval=1).save_async(1, {"x": torch.ones(2, device="xla")})"""

#: Work that fails after its call has returned, and the subject of the report.
FAILING = {
    "run_async": (
        "xm.add_step_closure(fail, (1,), run_async=True); xm.mark_step()",
        "add_step_closure(run_async=True)",
    ),
    "handler": ("AsyncClosureHandler().run(fail)", "AsyncClosureHandler"),
    "save_async": (SAVE, "CheckpointManager.save_async"),
    "two": (
        "h = AsyncClosureHandler(); h.run(lambda: threading.Event().wait(0.1)); h.run(fail)",
        "AsyncClosureHandler",
    ),
    "at exit": ("atexit.register(lambda: AsyncClosureHandler().run(fail))", "AsyncClosureHandler"),
}


def _run(work: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return run_script(PROGRAM.replace("{work}", work), check=False, WHERE=str(tmp_path / "saved"))


@pytest.mark.parametrize("name", FAILING)
def test_failure_of_the_last_task(tmp_path: Path, name: str) -> None:
    work, subject = FAILING[name]
    done = _run(work, tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"{subject} failed, and the process ended before the failure was raised:\nTraceback" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: of the last one") and "Exception ignored" not in done.stderr
    assert done.stdout == "after the call\nregistered later\n", "atexit functions are called"


def test_failure_that_was_raised_is_not_reported(tmp_path: Path) -> None:
    work = """h = AsyncClosureHandler(); h.run(fail)
    try:
        h.wait()
    except ValueError:
        print("raised")"""
    done = _run(work, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "raised\nafter the call\nregistered later\n"


def test_failure_in_spawned_processes(tmp_path: Path) -> None:
    """multiprocessing ends its children without atexit."""
    spawn = """
    import torch_xla.distributed.xla_multiprocessing as xmp
    def worker(index):
        AsyncClosureHandler().run(fail if index else int)
    try:
        xmp.spawn(worker, nprocs=2, start_method="fork")
    except Exception as error:
        print(type(error).__name__, "of the last one" in str(error))"""
    done = _run(spawn.strip(), tmp_path)
    assert done.stdout.startswith("ProcessRaisedException True\n"), done.stderr


#: A step whose program fails after its launch: an FFI kernel on the CPU rejects its input.
STEP = """
import gc; gc.unfreeze()
import jax, jax.numpy as jnp, numpy as np, torch, torch_xla
from torch_xla._engine.cpu_backend import library
from torch_xla.core.xla_builder import call_jax
library.load_library()
x = torch.ones(1200, 1200, device="xla")
for _ in range(10):
    x = x @ x * 0.001
results = [jax.ShapeDtypeStruct((), jnp.int64)] * 3
unpack = lambda v: jax.ffi.ffi_call("torch_xla_unpack", results)(v[0, :2].astype(jnp.int64), first=np.int64(0))[0]
y = call_jax(unpack, (x,))
torch_xla.sync()
print("launched")
"""


@pytest.mark.parametrize("is_read", [False, True])
def test_program_that_fails_after_its_launch(is_read: bool) -> None:
    read = "try:\n    y.item()\nexcept RuntimeError:\n    pass\n" if is_read else "del y\n"
    done = run_script(STEP + read, check=False)
    said = (
        "torch_xla: a program on xla:0 failed, and the process ended before its results were read:\n"
        "INTERNAL: unpack: there are fewer numbers than results"
    )
    assert done.stdout == "launched\n" and done.returncode == (0 if is_read else 1), done.stderr
    assert done.stderr == "" if is_read else said in done.stderr
