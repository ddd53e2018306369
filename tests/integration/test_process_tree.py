"""Process trees: signals to each process, and threads that start processes and exit before them.

The workers do not use their devices, so that a tree costs only forks (process_tree_programs.py).
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import scripts
from tests.support.helpers import run_script

PROGRAM = str(scripts.ROOT / "tests" / "programs" / "process_tree_programs.py")
#: Timeout of a test in seconds.
LIMIT = 300


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@dataclass
class Tree:
    """A running program, its workers' pids by index, and its other output lines."""

    process: subprocess.Popen[str]
    workers: dict[int, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def read_until(self, done: Callable[[], bool]) -> None:
        assert self.process.stdout is not None
        while not done():
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            words = line.rpartition("] ")[2].split()
            if words[0] == "started":
                self.workers[int(words[1])] = int(words[2])
            else:
                self.lines.append(" ".join(words))

    def finish(self) -> tuple[int, list[str], str]:
        """Return the exit code, the other lines and stderr, after all workers have exited."""
        out, err = self.process.communicate(timeout=LIMIT)
        until(lambda: all(map(has_ended, self.workers.values())))
        return self.process.returncode, [*self.lines, *out.split("\n")[:-1]], err


@contextmanager
def tree(*words: str, launcher: tuple[str, ...] = ()) -> Iterator[Tree]:
    variables = scripts.environment() | scripts.server_variables() | {"TORCH_XLA_GRACE_PERIOD": str(LIMIT)}
    command = [*launcher, *scripts.PYTHON, PROGRAM, *words]
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    started = Tree(process)
    try:
        started.read_until(lambda: len(started.workers) == 2 and bool(started.lines))
        yield started
    finally:
        process.kill()
        process.communicate()
        for pid in started.workers.values():
            if not has_ended(pid):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Case:
    """A signal to the parent: how workers and parent handle SIGTERM, the exit code, and whether workers save."""

    number: signal.Signals
    workers: str
    handler: str
    code: int
    saves: bool
    said: str = ""


TO_PARENT = {
    "saves": Case(signal.SIGTERM, "saves", "none", -signal.SIGTERM, True),
    "no handler": Case(signal.SIGTERM, "dies", "none", -signal.SIGTERM, False),
    "saving fails": Case(
        signal.SIGTERM, "fails", "none", -signal.SIGTERM, False, "OSError: no space left on the device"
    ),
    "a handler goes on": Case(signal.SIGTERM, "saves", "notes", 0, True),
    "a handler exits": Case(signal.SIGTERM, "saves", "exits", 7, True),
    "interrupt": Case(signal.SIGINT, "saves", "none", -signal.SIGINT, True, "KeyboardInterrupt"),
    "kill": Case(signal.SIGKILL, "saves", "none", -signal.SIGKILL, False),
}


@pytest.mark.parametrize("name", TO_PARENT)
def test_signal_to_the_parent(name: str, tmp_path: Path) -> None:
    case = TO_PARENT[name]
    with tree("spawn", case.workers, case.handler, str(tmp_path)) as started:
        started.process.send_signal(case.number)
        code, lines, err = started.finish()
    assert code == case.code, err
    assert lines == (["waiting", "noted", "returned"] if case.handler == "notes" else ["waiting"])
    assert {path.name for path in tmp_path.iterdir()} == ({"saved0", "saved1"} if case.saves else set())
    assert case.said in err if case.said else "Traceback" not in err, err


#: Worker 0 sends SIGTERM when the parent has a handler for it.
STUBBORN = """
    import os, signal, time, torch_xla.distributed.xla_multiprocessing as xmp

    def caught(pid):
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        return int(status["SigCgt"], 16) >> signal.SIGTERM - 1 & 1

    def work(index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while index == 0 and not caught(os.getppid()):
            time.sleep(0.01)
        if index == 0:
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(300)

    xmp.spawn(work, nprocs=2, start_method="fork")
"""


def test_grace_period() -> None:
    done = run_script(STUBBORN, check=False, TORCH_XLA_GRACE_PERIOD="1")
    assert done.returncode == -signal.SIGTERM
    # Process 1 may receive the signal before it ignores it.
    said = r"torch_xla: spawn killed process 0(, 1)?, which still ran 1 s \(TORCH_XLA_GRACE_PERIOD\) after SIGTERM\n"
    assert re.fullmatch(said, done.stderr)


def test_a_signal_that_the_parent_ignores(tmp_path: Path) -> None:
    with tree("spawn", "saves", "ignores", str(tmp_path)) as started:
        started.process.send_signal(signal.SIGTERM)
        (tmp_path / "end").touch()
        code, lines, err = started.finish()
    assert (code, lines) == (0, ["waiting", "returned"]), err
    assert not list(tmp_path.glob("saved*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_to_a_worker(number: signal.Signals, tmp_path: Path) -> None:
    """The parent reports the signal that ended the process, and terminates the other one."""
    with tree("spawn", "dies", "none", str(tmp_path)) as started:
        os.kill(started.workers[1], number)
        code, _, err = started.finish()
    assert code == 1
    expected = "KeyboardInterrupt" if number == signal.SIGINT else f"process 1 terminated with signal {number.name}"
    assert expected in err, err


def test_signal_to_the_launcher(tmp_path: Path) -> None:
    """xla_dist forwards it through the parent to the workers."""
    launcher = (*scripts.PYTHON, "-m", "torch_xla.distributed.xla_dist", "--local=1", "--")
    with tree("spawn", "saves", "none", str(tmp_path), launcher=launcher) as started:
        started.process.send_signal(signal.SIGTERM)
        code, _, err = started.finish()
    assert code == 128 + signal.SIGTERM, err
    assert {path.name for path in tmp_path.iterdir()} == {"saved0", "saved1"}


@pytest.mark.parametrize(
    ("method", "number"), [("fork", None), ("fork", signal.SIGKILL), ("forkserver", signal.SIGKILL)]
)
def test_spawn_from_a_thread_that_ends(method: str, number: signal.Signals | None, tmp_path: Path) -> None:
    """The workers continue after the thread exits, and are killed with the process."""
    with tree("spawn_from_thread", method, str(tmp_path)) as started:
        assert not any(map(has_ended, started.workers.values()))
        if number is not None:
            started.process.send_signal(number)
        else:
            (tmp_path / "end").touch()
        code, lines, err = started.finish()
    assert (code, lines[1:]) == ((0, ["returned"]) if number is None else (-number, [])), err


#: Replaces the compiling process: sends SIGTERM to the command, and exits by that signal, or ignores it.
COMPILER = """#!/bin/sh
{trap}
echo $$
kill -TERM $PPID
exec sleep 300 >/dev/null 2>&1  # an orphan holds no pipe open
"""


@pytest.mark.parametrize("trap", ["", "trap '' TERM"])
def test_signal_to_the_aot_command(trap: str, tmp_path: Path) -> None:
    """It is forwarded to the compiling process, which is killed at the end of its grace period."""
    compiler, folder = tmp_path / "compiler", tmp_path / "temporary"
    compiler.write_text(COMPILER.format(trap=trap))
    compiler.chmod(0o755)
    folder.mkdir()
    script = f"""
        import sys, tempfile
        from torch_xla.aot import command
        sys.executable, tempfile.tempdir = {str(compiler)!r}, {str(folder)!r}
        sys.exit(command.main(["--target", "v5e", {__file__!r}]))
    """
    done = run_script(script, check=False, TORCH_XLA_GRACE_PERIOD="1" if trap else str(LIMIT))
    pid = int(done.stdout)
    try:
        assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
        assert has_ended(pid) and not list(folder.iterdir())
    finally:
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)


#: Functions that start processes: a test that terminates one of the two, or why none is needed.
STARTS = {
    "torch_xla/_engine/base/xla_flags.py:_fork": "the child parses flags and exits",
    "torch_xla/cli/plan/process_pool.py:_start": "cli/test_plan.py::test_signal_to_the_plan",
    "torch_xla/_engine/recorder/toolchain.py:_run": (
        "recorder/test_build.py::test_build_outlives_the_process_that_started_it"
    ),
    "torch_xla/aot/command.py:_run_in_subprocess": "integration/test_process_tree.py::test_signal_to_the_aot_command",
    "torch_xla/debug/graph.py:svg": "it is waited for, and reads its standard input to the end",
    "torch_xla/distributed/_spawn_context.py:__init__": "integration/test_process_tree.py::test_signal_to_the_parent",
    "torch_xla/distributed/launcher/job_attempt.py:_start": (
        "public/test_launcher.py::test_interrupt_terminates_all_workers"
    ),
    "torch_xla/distributed/launcher/cluster.py:exec_job": "it execs the command, which handles its own signals",
    "torch_xla/distributed/launcher/launch.py:_check": "see complaint, which it contains",
    "torch_xla/distributed/launcher/launch.py:complaint": "it runs a short check on a worker, with a time limit",
    "torch_xla/distributed/launcher/worker_process.py:__init__": (
        "integration/test_process_tree.py::test_signal_to_the_launcher"
    ),
    "torch_xla/distributed/launcher/workers.py:_describe": "it runs a single gcloud query",
    "torch_xla/doctor/environment.py:_compiler": "it queries the compiler's version, with a time limit",
    "torch_xla/doctor/device_check.py:run_device_check": "public/test_doctor.py::test_probe_that_dies_or_hangs",
    "torch_xla/test/test_utils.py:_run_in_subprocess": "it runs one test, of a test suite",
}
_FUNCTIONS = {"Process", "Popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execvpe", "ProcessPoolExecutor"}
_OF_SUBPROCESS = {"run", "call", "check_call", "check_output"}


def _starters(tree: ast.Module, file: str) -> Iterator[str]:
    """Yield the functions that start processes, as FILE:FUNCTION."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            owner, _, name = called.rpartition(".")
            if name in _FUNCTIONS or (owner == "subprocess" and name in _OF_SUBPROCESS):
                yield f"{file}:{function.name}"


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((scripts.ROOT / "torch_xla").rglob("*.py")):
        yield str(path.relative_to(scripts.ROOT)), ast.parse(path.read_text())


def _assert_tests_exist(table: dict[str, str]) -> None:
    """Check that the tests that the table names by file and function exist."""
    for value in table.values():
        file, sign, name = value.partition("::")
        if sign:
            assert f"def {name}(" in (scripts.ROOT / "tests" / file).read_text(), value


def test_every_start_of_a_process_is_in_the_table() -> None:
    assert {start for file, tree in _modules() for start in _starters(tree, file)} == set(STARTS)
    _assert_tests_exist(STARTS)


#: Sends a second SIGTERM at each function that the handler of the first one calls.
SECOND_SIGTERM = """
    import os, signal, sys
    from torch_xla.experimental.distributed_checkpoint import _preemption

    notice = _preemption.watch_sigterm()
    signal.alarm(60)  # a handler that waits for a lock waits forever
    for position in range(1, 20):
        calls = 0

        def send_at_position(frame, event, argument):
            global calls
            calls += event.endswith("call")
            if calls == position:
                os.kill(os.getpid(), signal.SIGTERM)

        notice.has_arrived = False
        sys.setprofile(send_at_position)
        signal.raise_signal(signal.SIGTERM)
        sys.setprofile(None)
        assert notice.has_arrived
"""


def test_second_sigterm_during_the_handler_of_the_first() -> None:
    run_script(SECOND_SIGTERM)


#: Modules that install signal handlers: why a handler never waits for a lock that the interrupted code holds.
SIGNAL_HANDLERS = {
    "torch_xla/_engine/job/coordination.py": "it restores a previous handler",
    "torch_xla/cli/plan/process_pool.py": "it only raises, in a block that ends the processes",
    "torch_xla/distributed/_forked_worker.py": "it restores the default",
    "torch_xla/distributed/_termination.py": "it assigns and sends signals",
    "torch_xla/distributed/launcher/launch.py": "it only raises, in a block that ends the workers",
    "torch_xla/experimental/distributed_checkpoint/_preemption.py": "it only assigns",
}


def test_every_signal_handler_is_in_the_table() -> None:
    found = set()
    for file, tree in _modules():
        calls = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
        if "signal.signal" in calls:
            found.add(file)
    assert found == set(SIGNAL_HANDLERS)


#: Forks while a loader is partly read and programs have run, and exits the child like a program.
FORK = """
import gc; gc.unfreeze()
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # jax's and Python's own, about forking with threads
import torch, torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader

loader = iter(MpDeviceLoader([torch.ones(2) for _ in range(100)], torch.device("xla")))
next(loader)
(torch.ones(3, device="xla") + 1).sum().item()
print("\\n".join(thread.name for thread in threading.enumerate()), flush=True)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_fork_beside_each_thread() -> None:
    names = set(run_script(FORK).stdout.splitlines())
    assert names >= {"torch_xla loader: reader", "torch_xla loader: to xla:0"}, names


_FORKED = "integration/test_process_tree.py::test_fork_beside_each_thread"
_LOCKS = "recorder/test_fork.py::test_locks_that_other_threads_hold"
_LAUNCHER = "such a process forks by Popen only"

#: Modules that start threads, whose queues and locks may be in any state at a fork.
THREADS = {
    "torch_xla/_engine/diagnostics/compile_progress.py": _LOCKS,
    "torch_xla/_engine/diagnostics/profiler_spans.py": _LOCKS,
    "torch_xla/_engine/diagnostics/completion.py": _LOCKS,
    "torch_xla/cli/plan/worker.py": "it only waits for the end of the parent process",
    "torch_xla/_engine/execution/background_threads.py": "integration/test_last_failure.py",
    "torch_xla/_engine/compilation/persistent_cache/prefetch.py": _LOCKS,
    "torch_xla/_engine/data_loading/prefetch.py": _FORKED,
    "torch_xla/_engine/job/liveness.py": "parallel/test_elastic.py::test_a_killed_rank_ends_all",
    "torch_xla/_engine/job/program_exchange.py": "its threads are waited for in the call that starts them",
    "torch_xla/_engine/lowering/decompose.py": "recorder/test_fork.py::test_fork_beside_threads",
    "torch_xla/_engine/parallel/watchdog.py": "public/test_spawn.py::test_failing_processes",
    "torch_xla/debug/profiler.py": "a profile of another process",
    "torch_xla/distributed/_parent_death.py": "integration/test_process_tree.py::test_spawn_from_a_thread_that_ends",
    "torch_xla/distributed/data_parallel.py": "its threads are waited for in the call that starts them",
    "torch_xla/distributed/launcher/launch.py": _LAUNCHER,
    "torch_xla/distributed/launcher/worker_process.py": _LAUNCHER,
    "torch_xla/doctor/device_check.py": _LAUNCHER,
    "torch_xla/utils/utils.py": "its threads are waited for in the call that starts them",
}


def test_every_start_of_a_thread_is_in_the_table() -> None:
    found = set()
    for file, tree in _modules():
        calls = (ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call))
        if {"Thread", "Timer", "ThreadPoolExecutor"} & set(calls):
            found.add(file)
    assert found == set(THREADS)
    _assert_tests_exist(THREADS)
