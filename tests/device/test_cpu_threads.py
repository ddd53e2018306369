"""The CPU client has enough threads for the collectives of several CPU devices in one process, under any load."""

from __future__ import annotations

import pytest

from tests.support.helpers import run_script

EAGER = """
import contextlib, os, signal, subprocess, sys
busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
signal.alarm(240)  # a deadlock ends the process
try:
    import torch, torch_xla, torch_xla.experimental
    import torch_xla.distributed.spmd as xs
    count = {count}
    torch_xla.runtime.use_spmd()
    torch_xla.experimental.eager_mode(True)
    model = torch.nn.Linear(256, 256).to("xla")
    x = torch.randn(64 * count, 256).to("xla")
    xs.mark_sharding(x, xs.Mesh(range(count), (count,), ("x",)), ("x", None))
    threads = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{{number}}/comm") as file:  # it may end meanwhile
            threads.append(file.read().strip())
    assert threads.count("tf_XLAEigen") > count + len(os.sched_getaffinity(0)), threads
    assert "PJRT_NPROC" not in os.environ
    for _ in range(30):
        loss = (model(x) - x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad * 0.1)
                p.grad = None
    assert loss.item() < 1.4
finally:
    for process in busy:
        process.kill()
        process.wait()
"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.sweep), 8])
def test_eager_mode_over_a_mesh_beside_busy_processes(count: int) -> None:
    done = run_script(EAGER.format(count=count), check=False, CPU_NUM_DEVICES=str(count))
    assert done.returncode == 0, done.stderr[-3000:]


#: The last device is late at a collective, while launches for the others wait for room: 32 programs are in flight.
LATE = """
import signal
signal.alarm(240)  # a deadlock ends the process
import torch, torch_xla
torch_xla.runtime.use_spmd()
torch.ones(1, device="xla").cpu()  # starts the devices
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh, rows = Mesh(jax.devices("cpu"), ("x",)), PartitionSpec("x")

def compile_for_mesh(function):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))

def multiply(x):
    turns = jnp.where(jax.lax.axis_index("x") == mesh.size - 1, 300, 1)
    return jax.lax.fori_loop(0, turns, lambda _, x: jnp.tanh(x @ x), x)

multiply, add = compile_for_mesh(multiply), compile_for_mesh(lambda x: x + 1)
meet = compile_for_mesh(lambda x: jax.lax.psum(x, "x")[:4])
x = jax.device_put(jnp.ones((256 * mesh.size, 256)), NamedSharding(mesh, rows))
for _ in range(8):
    y = meet(multiply(x))
    for _ in range(100):
        y = add(y)
    assert float(y.max()) > 100
"""


@pytest.mark.parametrize("count", [2, 4])
def test_launches_that_wait_leave_threads_for_a_collective(count: int) -> None:
    done = run_script(LATE, check=False, CPU_NUM_DEVICES=str(count))
    assert done.returncode == 0, done.stderr[-3000:]


#: Processes of one device each: their pools have the size that XLA gives one device.
WORKERS = """
import contextlib, os
import torch, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp

def count_threads(index):
    torch.ones(3, device="xla").add(1).cpu()
    threads = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:  # it may end meanwhile
            threads.append(file.read().strip())
    assert threads.count("tf_XLAEigen") == len(os.sched_getaffinity(0)), threads

xmp.spawn(count_threads, start_method="fork")
"""


def test_a_process_of_one_device_has_threads_for_one() -> None:
    done = run_script(WORKERS, check=False, CPU_NUM_DEVICES="2")
    assert done.returncode == 0, done.stderr[-3000:]
