"""Processes forked while other threads are inside the recorder: no child hangs or calls XLA."""

from __future__ import annotations

import re

import pytest

from tests.support.helpers import ROOT, run_script

#: A parent whose threads upload, record, read and run while it forks; ``child`` is the code of each child. A child that
#: does not exit within a minute has hung. The threads pause while the parent waits for children.
PROGRAM = """
import os, random, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")  # jax's and Python's own, about forking with threads
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine import recorder

over, working, chance = False, threading.Event(), random.Random(0)
kept = torch.ones(4, device="xla") + 1
torch_xla.sync()

def upload():
    torch.ones(64).to("xla")

def record():
    x = torch.ones(4, device="xla")
    for _ in range(50):
        torch.relu(x) + torch.rand(4, device="xla")

def read():
    (torch.ones(4, device="xla") * 2).tolist()

def work(part, begun):
    while not over:
        working.wait()
        part()
        begun.set()

def child():
{child}

begun = [threading.Event() for _ in range(3)]
threads = [threading.Thread(target=work, args=a, daemon=True) for a in zip((upload, record, read), begun)]
for t in threads: t.start()
working.set()
for event in begun: event.wait()
failed = []
for first in range(0, {forks}, 10):
    children = {{}}
    working.set()
    for number in range(first, min(first + 10, {forks})):
        time.sleep(chance.uniform(0, 0.01))
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # ends it, unless it has ended before
            try:
                child()
            except BaseException as error:
                print(f"child {{number}}: {{type(error).__name__}}: {{error}}", flush=True)
                os._exit(3)
            {end}
        children[number] = pid
    working.clear()
    for number, pid in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != 0:
            failed.append((number, status))
over = True
working.set()
for t in threads: t.join()
assert kept.tolist() == [2.0] * 4  # the parent goes on
print("failed:", failed)
"""

CHILDREN = {
    "nothing": "pass",
    "work on the CPU": """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1)
model(torch.rand(2, 4)).sum().backward()
optimizer.step()
""",
    "tensors that die": """
import gc
global kept
del kept
gc.collect()
""",
    "recording": """
recorder.bindings().set_pending_limit(1 << 60)  # the parent may be just below its own
for _ in range(3):
    x = kept * 2 + torch.nn.functional.dropout(kept)
    kept.add_(1)
    recorder.bindings().counters()
""",
    "what needs a device": """
for number, touch in enumerate((
    lambda: kept.tolist(), lambda: (kept + 1).sum().item(), lambda: torch.ones(3).to("xla"), lambda: print(kept),
    lambda: torch_xla.sync(), lambda: torch.xla.synchronize(), lambda: xm.mark_step(),
    lambda: xm.wait_device_ops(["xla:0"]), lambda: kept[kept > 0],
    lambda: torch.linalg.eigvals(kept[:, None] * kept), lambda: kept.cpu(),
)):
    try:
        touch()
    except RuntimeError as error:
        assert "XLA does not survive a fork" in str(error), error
    else:
        raise AssertionError(f"{number} went through")
""",
}


def _script(child: str, end: str, forks: int) -> str:
    body = "\n".join("    " + line for line in child.strip().splitlines())
    return PROGRAM.format(child=body, end=end, forks=forks)


@pytest.mark.parametrize("name", CHILDREN)
def test_fork_beside_threads(name: str) -> None:
    forks = 50 if name in ("work on the CPU", "what needs a device") else 20
    done = run_script(_script(CHILDREN[name], "os._exit(0)", forks), check=False, TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "failed: []", done.stdout[-3000:]


def test_children_that_exit_normally() -> None:
    """They exit through atexit and interpreter shutdown, not os._exit."""
    done = run_script(
        "import gc; gc.unfreeze()\n" + _script(CHILDREN["work on the CPU"], "sys.exit(0)", 4), check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "failed: []", done.stdout[-3000:]


def test_child_of_a_process_without_devices_can_use_them() -> None:
    """Importing and seeding use no device, so the child can record and run."""
    run_script(
        """
        import os, torch, torch_xla
        torch.manual_seed(3)
        pid = os.fork()
        x = torch.rand(3, device="xla").tolist()
        if pid == 0:
            os._exit(0 if x else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )


def test_locks_that_other_threads_hold() -> None:
    """Each global lock that another thread holds at the fork is free in the child."""
    run_script(
        """
        import os, signal, threading, warnings
        warnings.simplefilter("ignore")  # Python's own, about forking with threads
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        from torch_xla._engine.base import fork_safe_lock
        (torch.ones(3, device="xla") + 1).sum().item()
        every, held, over = list(fork_safe_lock._all), threading.Event(), threading.Event()
        assert len(every) > 20, len(every)

        def hold():
            for lock in every:
                lock.acquire()
            held.set()
            over.wait()
            for lock in every:
                lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            met.metrics_report(), met.clear_all()
            os._exit(0 if not any(lock.locked() for lock in every) else 1)
        killer = threading.Timer(60, os.kill, (pid, signal.SIGKILL))  # it may hang before it can set an alarm
        killer.start()
        assert os.waitpid(pid, 0)[1] == 0
        killer.cancel()
        assert all(lock.locked() for lock in every)
        over.set()
        thread.join()
        """
    )


def test_collections_in_a_child_do_not_call_xla() -> None:
    """The child frees no garbage of its parent. The callback of jax waits for a lock, so it does not run."""
    run_script(
        """
        import gc, os, warnings
        warnings.simplefilter("ignore")  # jax's, about forking with threads
        import jax, torch, torch_xla

        class Cycle:
            def __init__(self):
                self.itself, self.array = self, jax.numpy.ones(4)
            def __del__(self):
                freed.append(os.getpid())

        gc.callbacks.append({}.setdefault)  # a callback of C, whose __module__ is None

        def calls_jax():
            return any(str(callback.__module__).startswith("jax.") for callback in gc.callbacks)

        gc.disable()
        freed, kept = [], torch.ones(4, device="xla") + 1
        torch_xla.sync()
        Cycle()
        assert calls_jax()
        pid = os.fork()
        if pid == 0:
            gc.collect()
            os._exit(1 if freed or calls_jax() else 0)
        assert os.waitpid(pid, 0)[1] == 0
        gc.collect()
        assert freed == [os.getpid()] and calls_jax()
        """
    )


def test_uploads_that_wait_for_their_release_stay_in_a_child() -> None:
    """An upload that was dropped without the GIL is released at the next upload, but not in a child."""
    run_script(
        """
        import os, warnings, weakref
        warnings.simplefilter("ignore")  # jax's, about forking with threads
        import jax, torch, torch_xla

        def upload():
            torch.ones(4).to("xla")

        upload()
        dropped = [weakref.ref(array) for array in jax.live_arrays()]
        assert dropped and all(ref() is not None for ref in dropped)
        pid = os.fork()
        if pid == 0:
            try:
                upload()
            except RuntimeError as error:
                assert "XLA does not survive a fork" in str(error), error
            os._exit(0 if all(ref() is not None for ref in dropped) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        upload()
        assert all(ref() is None for ref in dropped)
        """
    )


def test_statics_of_the_recorder_have_no_guard() -> None:
    """A guard stays locked in a child if another thread holds it at the fork, and waits for the lock of a table."""
    found = []
    for file in (ROOT / "torch_xla/_engine/recorder/csrc").rglob("*.*"):
        found += re.findall(r"static .*= (?:find_op|counter)\(.*", file.read_text())
    assert found == []


def test_every_lock_of_a_module_is_free_in_a_child() -> None:
    found = []
    for file in (ROOT / "torch_xla").rglob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.match(r"\w+(: .*)? = threading\.R?Lock\(\)", line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line}")
    # Used in the launcher process only, which does not fork.
    assert [line.partition(":")[0] for line in found] == ["torch_xla/distributed/launcher/worker_process.py"], found


#: Forks while a task of a worker is running and others wait. The child runs tasks and exits normally.
IN_FLIGHT = """
import gc; gc.unfreeze()
import os, sys, tempfile, threading, time, warnings
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _checksummed_storage
from torch_xla.utils.closures import AsyncClosureHandler

warnings.filterwarnings("ignore", r".*os\\.fork\\(\\) was called", RuntimeWarning)
warnings.filterwarnings("ignore", r".*use of fork\\(\\) may lead to deadlocks", DeprecationWarning)
begun, go, failing, done = threading.Event(), threading.Event(), AsyncClosureHandler(), []
values, parent = torch.ones(3, device="xla"), os.getpid()

def hold(*args):
    begun.set()
    assert go.wait(60)

handler = AsyncClosureHandler(2)
{start}
assert begun.wait(60)
gate, failed = threading.Event(), threading.Event()
for task in (gate.wait, lambda: 1 / 0, failed.set):  # the failure is the parent's to raise
    failing.run(task)
gate.set()
assert failed.wait(60)
pid = os.fork()
if pid == 0:
    done.clear()
    failing.wait()
    handler.wait()
    handler.run(lambda: done.append(os.getpid()))
    handler.wait()
    assert done == [os.getpid()], done
    sys.exit(7)
deadline = time.monotonic() + 40
while (status := os.waitpid(pid, os.WNOHANG))[0] == 0:
    if time.monotonic() > deadline:
        os.kill(pid, 9)
        os.write(2, b"the child hangs")
        os._exit(1)
    time.sleep(0.01)
go.set()
try:
    failing.wait()
except ZeroDivisionError:
    print(os.waitstatus_to_exitcode(status[1]))
"""

STARTS = {
    "run_async": "xm.add_step_closure(hold, (values,), run_async=True); xm.mark_step()",
    "full queue": "handler.run(hold); handler.run(lambda: done.append(0))",
    "save_async": """_checksummed_storage.save = hold
_checksummed_storage.replace = lambda *args: None
manager = CheckpointManager(tempfile.mkdtemp(), save_interval=1)
manager.save_async(1, {"x": values})""",
}


@pytest.mark.parametrize("name", STARTS)
def test_fork_while_a_task_is_in_flight(name: str) -> None:
    done = run_script(IN_FLIGHT.replace("{start}", STARTS[name]), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", ""), done.stderr[-3000:]


def test_fork_beside_a_loader() -> None:
    """Loader threads do not exist in the child: requesting a batch raises, and the child exits."""
    run_script(
        """
        import os, torch, torch_xla, warnings
        import torch_xla.distributed.parallel_loader as pl
        from torch_xla._engine.lowering import decompose
        warnings.filterwarnings("ignore", r".*os\\.fork\\(\\) was called", RuntimeWarning)
        warnings.filterwarnings("ignore", r".*use of fork\\(\\) may lead to deadlocks", DeprecationWarning)
        assert decompose._tracer().submit(int).result() == 0
        loader = pl.MpDeviceLoader([torch.ones(2)] * 50, "xla", loader_prefetch_size=2, device_prefetch_size=1)
        batches = iter(loader)
        next(batches)
        pid = os.fork()
        if pid == 0:
            assert decompose._tracer().submit(int).result() == 0
            try:
                while True:
                    next(batches)
            except RuntimeError as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )


def test_data_loader_workers_print_nothing() -> None:
    """jax warns at each fork, which is an error with -W error, but workers that use no device do not deadlock."""
    code = """
    import torch, torch_xla
    from torch.utils.data import DataLoader, TensorDataset

    total = torch.ones((), device="xla")
    for _ in range(2):
        for (batch,) in DataLoader(TensorDataset(torch.arange(8.0)), num_workers=2, batch_size=4):
            total += batch.to("xla").sum()
    print(total.item())
    """
    done = run_script(code, fresh="a warning in a function called before a fork is only printed")
    assert done.stdout == "57.0\n"


FORKED_TESTS = """
import os, sys
import torch, torch_xla

def test():
    model = torch.nn.Linear(3, 2).to("xla")
    model(torch.ones(4, 3, device="xla")).sum().backward()
    torch_xla.sync()
    assert model.bias.grad.tolist() == [4.0, 4.0] and torch_xla.device().index == 0

for _ in range(3):
    child = os.fork()
    if child == 0:
        test()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_runner_may_fork_each_test() -> None:
    run_script(FORKED_TESTS)


CPU_PASSES = """
import os
import torch
import torch_xla

def run():
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    return x.grad.tolist()

before = len(os.listdir("/proc/self/task"))
assert run() == [2.0] * 3
assert len(os.listdir("/proc/self/task")) == before, "autograd started threads"
pid = os.fork()
if pid == 0:
    os._exit(0 if run() == [2.0] * 3 else 1)
assert os.waitpid(pid, 0)[1] == 0
# Autograd has counted the devices, and has no thread for xla: all passes run on this thread.
x = torch.ones(3, device="xla", requires_grad=True)
(x * 2).sum().cpu().backward()
assert x.grad.tolist() == [2.0] * 3
(x * torch.autograd.grad((x * 3).sum(), x, create_graph=True)[0]).sum().backward()
assert x.grad.tolist() == [5.0] * 3
"""


def test_backward_on_the_cpu_before_a_fork() -> None:
    run_script(CPU_PASSES, imports="counts threads", PJRT_DEVICE="CPU", OMP_NUM_THREADS="1")


PARALLEL_LOOPS = """
import os, torch, torch_xla
import torch_xla.debug.metrics as met
torch.set_num_threads(2)
x = torch.randn(400, 400)
expected = (x * 2 + 1).sum().item()  # GNU's OpenMP makes a team for this thread
pid = os.fork()
if pid == 0:
    if generations == 2:  # the team is in neither
        pid = os.fork()
        if pid:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    y = x.to("xla")
    for step in range(3):  # interpreted, compiled, cached
        total = torch.nn.functional.layer_norm(y * 2 + 1, (400,)).sum() * 0 + (y * 2 + 1).sum()
        torch_xla.sync()
        assert abs(total.item() - expected) < 1, (total.item(), expected)
    assert met.counter_value("CpuKernelCalls"), met.counter_names()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert torch.get_num_threads() == 2
"""


@pytest.mark.parametrize(("policy", "generations"), [("auto", 1), ("compile", 1), ("auto", 2)])
def test_parallel_loops_before_a_fork(policy: str, generations: int) -> None:
    """The child neither uses nor releases an OpenMP team whose threads stayed in the parent."""
    script = f"generations = {generations}\n{PARALLEL_LOOPS}"
    run_script(script, fresh="OpenMP teams", PJRT_DEVICE="CPU", TORCH_XLA_COMPILE_POLICY=policy)
