"""A forked script (see fork_server.py) behaves, prints and exits as in a new interpreter."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import scripts
from tests.support.helpers import run_script

SCRIPTS = {
    "prints": "import sys; print('out'); print('err', file=sys.stderr)",
    "exit code": "import sys; print('unflushed', end=''); sys.exit(7)",
    "exit with words": "import sys; sys.exit('words')",
    "exception": "def f():\n    raise KeyError('mine')\nf()",
    "exception with a cause": "try:\n    1 / 0\nexcept ArithmeticError as error:\n    raise ValueError('x') from error",
    "exception group": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
    "no program": "x = (",
    "excepthook": "import sys; sys.excepthook = lambda *args: print(args[0], args[1])\n1 / 0",
    "abort": "import os; os.abort()",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "ended by hand": "import os; print('lost'); os._exit(5)",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('first')",
    "atexit after an exception": "import atexit; atexit.register(print, 'bye'); print('first'); 1 / 0",
    "finalizer at the end": "class A:\n    def __del__(self): print('gone')\na = A()",
    "thread goes on": "import threading, time; threading.Thread(target=lambda: (time.sleep(.1), print('on'))).start()",
    "main thread": "import threading; print(threading.current_thread() is threading.main_thread())",
    "warning": "import warnings; warnings.warn('careful')",
    "names": "print(sorted(globals()), __name__, __doc__, __spec__)",
    "future": "def f(x: int): pass\nprint(f.__annotations__)",
    "argv": "import sys; print(sys.argv, sys.path, sys.flags, sys.warnoptions)",
    "folder": "import os; print(os.getcwd())",
    "environment": "import os; print(sorted((n, v) for n, v in os.environ.items() if n not in os.environ['IGNORED']))",
    "descriptors": "import os; print(os.listdir('/proc/self/fd'), os.fstat(1).st_mode == os.fstat(2).st_mode)",
    "standard input": "import sys; print(repr(sys.stdin.read()))",
    "child": "import subprocess, sys; print(subprocess.run(['sh', '-c', 'echo $MARK; exit 3']).returncode)",
    "fork": "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait(); print('parent')",
    "pipes": "import multiprocessing as mp; a, b = mp.Pipe(); a.send(3); print(b.recv())",
    "signals": "import signal; print([signal.getsignal(s) for s in (2, 13, 15, 17)], signal.pthread_sigmask(0, []))",
    "children": "import os\ntry:\n    os.wait()\nexcept ChildProcessError as error:\n    print(error)",
    "large": "print('x' * 1_000_000)",
    "no text": "",
    "thread to the end": "import threading\ndef f():\n    threading.main_thread().join(); print('over')\n"
                         "threading.Thread(target=f).start()",
    "error in atexit": "import atexit, sys; sys.unraisablehook = lambda a: print(a.exc_type)\n"
                       "atexit.register(print, 'more'); atexit.register(lambda: 1 / 0); print('first')",
    "the end itself": "import gc; gc.unfreeze(); print('first')",
    "other stdout": "import io, sys; print(1); sys.stdout = io.StringIO(); print(2)",
    "exit with a large number": "import sys; sys.exit(1000)",
}  # fmt: skip

#: Variables that importing torch sets for children, unless they are set; the last one when the first op is recorded.
SET_BY_IMPORTING = (
    "TF_CPP_MIN_LOG_LEVEL TPU_ML_PLATFORM TPU_ML_PLATFORM_VERSION KMP_DUPLICATE_LIB_OK TORCHINDUCTOR_CACHE_DIR"
)


def seen(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_as_in_a_new_interpreter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"MARK": "é $x\n", "IGNORED": SET_BY_IMPORTING}
    forked, fresh = (scripts.run(SCRIPTS[name], fresh, environment) for fresh in (False, True))
    assert seen(forked) == seen(fresh)


def test_interrupt() -> None:
    # The handler is Python's default, which Python does not install if the tests run in the background.
    handled = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"import os, signal; {handled}; os.kill(os.getpid(), signal.SIGINT)"
    done = scripts.run(code, False, {})
    assert done.returncode == -signal.SIGINT and done.stderr.endswith("\nKeyboardInterrupt\n")


def test_which_scripts_are_forked() -> None:
    """All scripts are forked except fresh ones, and those with variables that importing torch reads."""
    script = "import sys; print(*(name for name in ('torch', 'jax', 'torch_xla') if name in sys.modules))"
    assert run_script(script, WHATEVER="1", XLA_FLAGS="", RANK="0").stdout == "torch jax torch_xla\n"
    assert run_script(script, fresh="asks for it").stdout == "\n"
    for name in ("JAX_PLATFORMS", "MKL_NUM_THREADS", "PYTHONHASHSEED"):
        assert run_script(script, **{name: "1"}).stdout == "\n", name
    for name in ("XLA_IR_DEBUG", "TORCH_XLA_LOGS", "XRT_DEVICE_MAP"):  # torch_xla reads them
        assert run_script(script, **{name: "1"}).stdout == "torch jax\n", name
    for name, value in {"XLA_SYNC_WAIT": "1", "TORCH_XLA_COMPILE_POLICY": "auto"}.items():  # torch_xla checks them
        assert run_script(script, **{name: value}).stdout == "torch jax torch_xla\n", name
    for name, value in {"XLA_SYNC_WAIT": "maybe", "XLA_SYNC_WAITS": "1"}.items():  # the check reports them
        assert run_script(script, **{name: value}).stdout == "torch jax\n", name
    script = "import sys, torch; print('torch_xla' in sys.modules, torch.get_num_threads())"
    assert run_script(script, OMP_NUM_THREADS="3").stdout == "True 3\n", "the fork applies variables of launchers"


def test_variables_read_by_the_import_of_torch_xla() -> None:
    script = """
        import torch_xla
        from torch_xla._engine.base.settings import settings
        print("XLA_IR_DEBUG" in vars(settings), settings.XLA_IR_DEBUG)
        """
    assert [run_script(script, XLA_IR_DEBUG=value).stdout for value in "01"] == ["True False\n", "True True\n"]


def test_child_has_its_own_settings_and_devices() -> None:
    script = """
        import torch, torch_xla
        from torch_xla._engine.base.settings import settings
        import torch_xla.debug.metrics as met
        x = torch.ones(2, device="xla:1") + 1
        print(x.tolist(), settings.XLA_SYNC_WAIT, torch_xla.device_count(), met.metric_data("ExecuteTime")[0])
        """
    for wait in ("0", "1"):
        done = run_script(script, XLA_SYNC_WAIT=wait, CPU_NUM_DEVICES="2", PJRT_DEVICE="CPU")
        assert done.stdout == f"[2.0, 2.0] {wait == '1'} 2 1\n"


def test_unseeded_random_numbers_differ() -> None:
    script = "import random, numpy, os; print(random.random(), numpy.random.rand(), os.urandom(4))"
    assert run_script(script).stdout != run_script(script).stdout


def test_at_the_same_time() -> None:
    """Concurrent scripts have separate output and exit codes, end in any order, and do not wait for each other."""
    with ThreadPoolExecutor(4) as pool:
        codes = [f"import sys, time; time.sleep({0.4 - i / 10}); print({i}); sys.exit({i})" for i in range(4)]
        done = list(pool.map(lambda code: scripts.run(code, False, {}), codes))
    assert [seen(one) for one in done] == [(i, f"{i}\n", "") for i in range(4)]


#: A file that prints its name, and whether it was forked.
PROGRAM = """
import os, sys
__import__("warnings").warn("heard")
print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), os.environ["MARK"], sys.stdin.read())
print("torch" in sys.modules, file=sys.stderr)
{end}
"""


@pytest.mark.parametrize("way", ["file", "module"])
@pytest.mark.parametrize("end", ["sys.exit(3)", "os.abort()", "raise KeyError('mine')", "os.kill(os.getpid(), 9)"])
def test_python_of_launchers(tmp_path: Path, way: str, end: str) -> None:
    """The stand-in for ``python`` behaves, prints and exits as python does, but has imported torch."""
    (tmp_path / "mine.py").write_text(PROGRAM.format(end=end))
    command = {"file": [str(tmp_path / "mine.py"), "--x", ""], "module": ["-m", "mine", "a b"]}[way]
    environment = os.environ | scripts.server_variables() | {"MARK": "é"}
    forked, fresh = (
        subprocess.run([*python, *command], env=environment, cwd=tmp_path, input="in", capture_output=True, text=True)
        for python in (scripts.PYTHON, [sys.executable])
    )
    assert "\nTrue\n" in forked.stderr and "UserWarning: heard" in forked.stderr
    lines = [line for line in forked.stderr.replace("\nTrue\n", "\nFalse\n").splitlines() if "runpy" not in line]
    assert (forked.returncode, forked.stdout) == (fresh.returncode, fresh.stdout)
    assert lines[:3] == [line for line in fresh.stderr.splitlines() if "runpy" not in line][:3]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_are_forwarded_to_the_fork(tmp_path: Path, number: int, code: int) -> None:
    program = "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print(os.getpid(), flush=True)"
    process = subprocess.Popen(
        [*scripts.PYTHON, "-c", f"{program}; time.sleep(600)"], env=os.environ | scripts.server_variables(),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        fork = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.stdout.read() == "", "it has ended: no process holds the other end"
    assert process.wait() == code
    assert select.select([fork], [], [], 60)[0] == [fork]
    os.close(fork)


def test_check(tmp_path: Path) -> None:
    """run_script reports a failure: an exit code, or output on stderr."""
    with pytest.raises(AssertionError, match=r"ended with 3\nseen\n"):
        run_script("import sys; print('seen'); sys.exit(3)")
    with pytest.raises(AssertionError, match="careful"):
        run_script("import sys; print('careful', file=sys.stderr)")
    assert textwrap.dedent(run_script("  print('indented')").stdout) == "indented\n"
