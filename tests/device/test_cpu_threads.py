"""The CPU client has threads for the CPUs that the process may use, and for collectives of several CPU devices."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.device import cpu_threads

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


#: Files below /sys/fs/cgroup and /proc/self/cgroup: the CPUs' worth of time that they allow.
GROUPS: dict[str, tuple[str, dict[str, str], float]] = {
    "version 2": ("0::/job", {"job/cpu.max": "150000 100000"}, 1.5),
    "a parent": ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
    "a container": ("0::/", {"cpu.max": "200000 100000"}, 2),
    "another group": ("0::/job", {"other/cpu.max": "50000 100000"}, math.inf),
    "unlimited": ("0::/job", {"job/cpu.max": "max 100000"}, math.inf),
    "version 1": (
        "4:memory:/m\n1:cpu,cpuacct:/job\n0::/",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "300000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
        3,
    ),
    "version 1, a container": (
        "1:cpu:/docker/17",
        {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"},
        1,
    ),
    "version 1, unlimited": ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
    "unreadable": ("0::/job", {"job/cpu.max": "?"}, math.inf),
}


@pytest.mark.parametrize("name", GROUPS)
def test_quotas_of_control_groups(name: str, tmp_path: Path) -> None:
    lines, files, expected = GROUPS[name]
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    groups.write_text(f"{lines}\n")
    for file, text in files.items():
        (mount / file).parent.mkdir(parents=True, exist_ok=True)
        (mount / file).write_text(f"{text}\n")
    assert cpu_threads.cgroup_quota(groups, mount) == expected


def test_the_number_of_cpus_follows_quota_and_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "_counted", (-math.inf, 0))
    monkeypatch.setattr(cpu_threads, "_PERIOD", 0.0)
    monkeypatch.setattr(cpu_threads, "_cores", lambda: 4)
    for quota, expected in ((math.inf, 4), (2.5, 3), (0.1, 1), (8.0, 4)):
        monkeypatch.setattr(cpu_threads, "cgroup_quota", lambda quota=quota: quota)
        assert cpu_threads.usable_cpus() == expected


LIMITED = """
import os
from pathlib import Path
from torch_xla._engine.device import cpu_threads
cpu_threads.cgroup_quota = lambda: 1.0
import torch, torch_xla
torch.set_num_threads(2)
torch.conv2d(torch.randn(8, 16, 32, 32).to("xla"), torch.randn(32, 16, 3, 3).to("xla")).cpu()
names = [(path / "comm").read_text().strip() for path in Path("/proc/self/task").iterdir()]
assert names.count("tf_XLAEigen") == 1, names
assert "PJRT_NPROC" not in os.environ and torch.get_num_threads() == 2
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a quota of one CPU is no limit on one core")
def test_a_quota_of_one_cpu_has_one_thread() -> None:
    run_script(LIMITED)
