"""torch_xla in the life of a process: import, fork, threads, exit, long graphs, several devices, memory."""

from __future__ import annotations

import textwrap

import pytest

from tests.support import fast_compile_flags
from tests.support.helpers import run_script


def test_import_starts_nothing() -> None:
    out = run_script(
        """
        import os
        import torch, jax
        import jax._src.xla_bridge as bridge
        threads = lambda: len(os.listdir("/proc/self/task"))
        before = threads()
        import torch_xla
        import torch_xla.core.xla_model, torch_xla.debug.metrics
        print(threads() - before, dict(bridge._backends), jax.config.jax_enable_x64)
        torch.ones(2, device="xla").cpu()
        print(len(bridge._backends), jax.config.jax_enable_x64, jax.numpy.ones(2).dtype)
        """,
        imports="it looks before it imports torch_xla",
    )
    assert out.stdout == "0 {} False\n1 False float32\n"


def test_fork_after_import() -> None:
    out = run_script(
        """
        import os
        import torch, torch_xla
        children = []
        for i in range(2):
            pid = os.fork()
            if pid == 0:
                print(f"child {(torch.ones(2, device='xla') * (i + 2)).sum().item()}", flush=True)
                os._exit(0)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(codes, (torch.ones(2, device="xla") + 1).tolist())
        """
    )
    assert sorted(out.stdout.splitlines()) == ["[0, 0] [2.0, 2.0]", "child 4.0", "child 6.0"]


#: A process exit takes two seconds of a core, so cases that cannot hide each other's failures share one.
EXITS = {
    "live tensors": """
        x = torch.ones(2, device="xla", requires_grad=True)
        y = (x * 2).sum()
        torch_xla.sync()
        z = y + 1  # pending
        z.backward()
        """,
    "cycle, optimizer, thread local, executing": """
        class Holder: pass
        holder = Holder()
        holder.self, holder.tensor = holder, torch.ones(2, device="xla") + 1

        model = torch.nn.Linear(4, 4).to("xla")
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(1, 4, device="xla")).sum().backward()
            optimizer.step()
            torch_xla.sync()

        import threading
        local = threading.local()
        local.x = torch.ones(3, device="xla") * 2

        x = torch.rand(300, 300, device="xla")
        for _ in range(20):
            x = x @ x
        torch_xla.sync()
        """,
    "daemon thread": """
        import threading
        busy = threading.Event()
        def work():
            x = torch.ones(8, device="xla")
            while True:
                x = (x * 1.01).clamp(max=3)
                x.sum().item()
                busy.set()
        threading.Thread(target=work, daemon=True).start()
        busy.wait()
        """,
    "recording daemon threads": """
        import threading, time
        ready = []
        def work():
            x = torch.ones(8, device="xla")
            while True:
                ready.append((x * 1.01 + 1).sum())
                ready.pop()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        """,
    "thread, exception, pending": """
        import sys, threading
        def work():
            for _ in range(30):
                kept.append((torch.ones(8, device="xla") * 3).sum())
                kept[-1].item()
        kept = []
        threading.Thread(target=work).start()
        x = torch.ones(3, device="xla") + 1
        sys.exit(0)
        """,
    "nothing": "",
}


@pytest.mark.parametrize("name", EXITS)
def test_clean_exit(name: str) -> None:
    """Collect garbage at exit, as in a process that was not forked; ``nothing`` is one that was not."""
    start = "import gc, torch, torch_xla\ngc.unfreeze()\n"
    # Threads that record together flush their graph at varying points, about which a warning would be printed.
    fresh = "the end itself" if name == "nothing" else None
    run_script(start + textwrap.dedent(EXITS[name]), fresh=fresh, TORCH_XLA_EXPLAIN_RECOMPILATIONS="0")


def test_exception_at_exit_is_unchanged() -> None:
    out = run_script(
        "import torch, torch_xla\nx = torch.ones(2, device='xla') + 1\nraise KeyError('mine')", check=False
    )
    assert out.returncode == 1 and out.stderr.endswith("KeyError: 'mine'\n")


def test_threads() -> None:
    """Record, read, free and differentiate on several threads at the same time."""
    out = run_script(
        """
        import gc, threading
        import torch, torch_xla
        from torch_xla._engine import recorder
        errors = []

        def checked(function):
            def run(i):
                try:
                    function(i)
                except BaseException as error:
                    errors.append((function.__name__, repr(error)))
            return run

        def everywhere(function, count=6):
            threads = [threading.Thread(target=checked(function), args=(i,)) for i in range(count)]
            [t.start() for t in threads]
            [t.join() for t in threads]

        shared = torch.arange(4.0, device="xla")

        def record(i):
            x = torch.full((4,), float(i), device="xla")
            for step in range(60):
                x = x * 1 + shared
                x[0] += 1
                if step % 20 == 19:
                    torch_xla.sync()
            assert x.tolist() == [i + 60, i + 60, i + 120, i + 180], x

        def backward(i):
            w = torch.full((3,), float(i + 1), device="xla", requires_grad=True)
            for _ in range(10):
                (w**2).sum().backward()
            assert w.grad.tolist() == [20 * (i + 1)] * 3, w.grad

        def free(i):
            while tensors:
                tensors.pop()

        def views(i):
            base = torch.zeros(6, device="xla")
            for k in range(30):
                base[i] += 1
                common[i].add_(1)
            assert base.sum().item() == 30

        everywhere(record)
        everywhere(backward)
        tensors = [torch.ones(2, device="xla") * i for i in range(400)]
        torch_xla.sync()
        tensors += [torch.ones(2, device="xla") + i for i in range(400)]
        everywhere(free)
        del shared
        gc.collect()
        torch_xla.sync()
        print(errors, recorder.bindings().live_tensor_count(0), len(recorder.bindings().live_buffers(0)))
        common = torch.zeros(6, 2, device="xla")
        everywhere(views)
        print(errors, common.shape)
        """,
        XLA_FLAGS=fast_compile_flags.FLAGS,
        TORCH_XLA_EXPLAIN_RECOMPILATIONS="0",  # each sync finds what the other threads happen to have recorded
    )
    assert out.stdout == "[] 0 0\n[] torch.Size([6, 2])\n"


def test_a_million_pending_operations() -> None:
    """Record a million operations, traverse them in a read of another tensor, and drop them."""
    out = run_script(
        """
        import torch, torch_xla
        from torch_xla._engine import recorder
        recorder.bindings().set_pending_limit(2_000_000)
        x = torch.zeros(2, device="xla")
        other = x + 1
        for _ in range(1_000_000):
            x = x + 2.5
        print(recorder.bindings().pending_count(0) > 1_000_000, other.tolist())
        x = None
        torch_xla.sync()
        print((torch.ones(2, device="xla") + 1).tolist(), recorder.bindings().live_tensor_count(0))
        """
    )
    assert out.stdout == "True [1.0, 1.0]\n[2.0, 2.0] 1\n"


def test_deep_graphs() -> None:
    out = run_script(
        """
        import torch, torch_xla
        x = y = torch.zeros(2, device="xla", requires_grad=True)
        for _ in range(1500):
            y = y + 1
        y.sum().backward()
        torch_xla.sync()
        print(y.tolist(), x.grad.tolist())
        v = torch.zeros(2, 2, device="xla")
        for i in range(400):
            v.t()[i % 2] += 1
        print(v.tolist())
        """,
        XLA_FLAGS=fast_compile_flags.FLAGS,
    )
    assert out.stdout == "[1500.0, 1500.0] [1.0, 1.0]\n[[200.0, 200.0], [200.0, 200.0]]\n"


def test_two_devices() -> None:
    out = run_script(
        """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        print(torch_xla.devices(), torch_xla.device_count(), xm.get_xla_supported_devices(), torch_xla.real_devices())
        a = torch.ones(2, device="xla:1", requires_grad=True)
        (a * 3).sum().backward()
        print(a.grad)
        b = torch.full((2,), 4.0, device="xla:0")
        try:
            a + b
        except RuntimeError as error:
            print(error)
        c = b.to("xla:1")
        print((a + c).detach(), b.to("xla"), c.to("xla:1") is c)
        b += 1
        print(b.tolist(), c.tolist(), torch.zeros(2, device="xla:1").copy_(b))
        print(xm.xla_device(1), torch.ones(1, device="xla"), xm.xla_device())
        xm.xla_device(0)
        torch.manual_seed(1)
        p, q = torch.rand(2, device="xla:0"), torch.rand(2, device="xla:1")
        print(p.tolist() != q.tolist())
        loss = (torch.nn.Linear(2, 2).to("xla:1")(a).sum().to("xla:0") * b).sum()
        loss.backward()
        xm.wait_device_ops()
        print(a.grad.device, loss.device)
        try:
            torch.ones(1, device="xla:2")
        except RuntimeError as error:
            print(error)
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="CPU",
    )
    lines = out.stdout.splitlines()
    assert (
        lines[0] == "[device(type='xla', index=0), device(type='xla', index=1)] 2 ['xla:0', 'xla:1'] ['CPU:0', 'CPU:1']"
    )
    assert lines[1] == "tensor([3., 3.], device='xla:1')"
    assert lines[2].startswith("aten::add.Tensor: ") and "xla:0" in lines[2] and "xla:1" in lines[2]
    assert lines[3] == "tensor([5., 5.], device='xla:1') tensor([4., 4.], device='xla:0') True"
    assert lines[4] == "[5.0, 5.0] [4.0, 4.0] tensor([5., 5.], device='xla:1')"
    assert lines[5] == "xla:1 tensor([1.], device='xla:1') xla:1"
    assert lines[6] == "True"
    assert lines[7] == "xla:1 xla:0"
    assert lines[8].startswith("xla:2 does not exist: this process has 2 xla devices (xla:0 to xla:1)")


def test_backward_before_any_backend_and_cpu_training_goes_on() -> None:
    """Autograd creates its threads at the first backward of the process, which may not involve xla."""
    out = run_script(
        """
        import torch, torch_xla
        w = torch.ones(2, requires_grad=True)
        (w * 2).sum().backward()
        v = torch.ones(2, device="xla:1", requires_grad=True)
        (v * 5).sum().backward()
        print(w.grad.tolist(), v.grad.tolist())
        """,
        CPU_NUM_DEVICES="2",
    )
    assert out.stdout == "[2.0, 2.0] [5.0, 5.0]\n"


MEMORY = """
import gc, os
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine import recorder

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Flatten(),
                            torch.nn.Linear(144, 10)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)

def train(steps):
    for _ in range(steps):
        x, y = torch.randn(16, 1, 8, 8).to("xla"), torch.randint(10, (16,)).to("xla")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        schedule.step()
        loss.item()

train(WARM)
before, tensors = resident(), recorder.bindings().live_tensor_count(0)
train(STEPS)
print(resident() / before - 1, recorder.bindings().live_tensor_count(0) - tensors)
"""


@pytest.mark.parametrize(
    ("warm", "steps", "growth"), [(200, 300, 0.01), pytest.param(200, 1800, 0.01, marks=pytest.mark.sweep)]
)
def test_memory_stays_flat(warm: int, steps: int, growth: float) -> None:
    code = MEMORY.replace("WARM", str(warm)).replace("STEPS", str(steps))
    grown, tensors = run_script(code).stdout.split()
    assert float(grown) < growth
    assert int(tensors) == 0
