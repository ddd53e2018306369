"""Kernel threads of CPU programs: how many, across forks, and at the end of the process."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.helpers import run_script
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.recorder import build

_TRAIN = """
    import torch, torch_xla
    import torch_xla.debug.metrics as met

    def step(seed=0):
        torch.manual_seed(seed)
        w = torch.randn(32, 16, 3, 3).to("xla").requires_grad_()
        x = torch.randn(8, 16, 32, 32).to("xla")
        loss = torch.conv2d(x, w).square().mean()
        loss.backward()
        return loss.item(), w.grad.sum().item()
    """


def test_programs_from_the_disk(tmp_path: Path) -> None:
    """The handlers are known before a program that calls them is loaded; with and without them programs are apart."""
    script = _TRAIN + 'print(step(), met.counter_value("PersistentCacheHit"), met.counter_value("CpuKernelCalls"))\n'
    folder = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    first, second = (run_script(script, **folder).stdout for _ in range(2))
    assert " None " in first and " None " not in second
    assert first.split(")")[0] == second.split(")")[0]
    assert " None None" in run_script(script, **folder, TORCH_XLA_CPU_KERNELS="0").stdout


def test_after_a_fork() -> None:
    """The thread of a parent's handlers is not in its child, which starts its own."""
    run_script(
        _TRAIN
        + """
    import os
    from torch_xla._engine.cpu_backend import library
    torch.conv2d(torch.randn(8, 16, 32, 32), torch.randn(32, 16, 3, 3))  # torch's threads of the parent
    library.load_library()
    child = os.fork()
    found = step()
    if child == 0:
        os._exit(0 if found[0] > 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    )


def test_number_of_threads() -> None:
    """One team of torch's threads for all of XLA's, as large as torch.set_num_threads says."""
    run_script(
        _TRAIN
        + """
    from pathlib import Path

    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    torch.set_num_threads(3)
    step()
    before = threads()
    for seed in range(20):
        step(seed)
    assert threads() <= before + 1, (before, threads())
    torch.set_num_threads(1)
    one = step()
    torch.set_num_threads(4)
    assert abs(step()[1] - one[1]) < 1e-2 * abs(one[1]) + 1e-3
    assert torch.get_num_threads() == 4
    """
    )


_TWO_TEAMS = """
    import os, re, torch, torch_xla
    import torch_xla.debug.metrics as met
    from pathlib import Path

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    w = [torch.randn(64, 64, 3, 3) for _ in range(3)]
    x = torch.randn(16, 64, 16, 16)
    on_xla = x.to("xla"), [each.to("xla").requires_grad_() for each in w]

    def forward(x, w):
        for each in w:
            x = torch.conv2d(x, each, padding=1)
        return x.square().mean()

    def step():
        forward(*on_xla).backward()
        torch_xla.sync(wait=True)
        for each in on_xla[1]:
            each.grad = None

    def threads():
        return {thread.name: thread for thread in Path("/proc/self/task").iterdir()}
    """

_SLEEPS = """
    def sleeps():
        found = {name: (thread / "status").read_text() for name, thread in threads().items()}
        return {name: int(re.search(r"\\nvoluntary_ctxt_switches:\\s+(\\d+)", text)[1]) for name, text in found.items()}
    """


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there are no teams on one core")
def test_an_upload_starts_no_team() -> None:
    """The team of the copy would compete with XLA's threads."""
    run_script(
        _TWO_TEAMS
        + """
    for _ in range(5):
        step()
    before = set(threads())
    moved = x.to("xla")
    assert not set(threads()) - before
    assert torch.equal(moved.cpu(), x)
    forward(x, w)
    assert set(threads()) - before, "a loop of torch has a team"
    """
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there are no teams on one core")
@pytest.mark.parametrize(
    ("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "1000"), ("KMP_BLOCKTIME", "0")]
)
def test_openmp_waits_as_configured(name: str, value: str) -> None:
    run_script(
        _TWO_TEAMS
        + """
    for _ in range(3):
        step()
    names = [(thread / "comm").read_text().strip() for thread in threads().values()]
    assert names.count("xla_cpu_kernels") == cores and "xla_omp_sleeper" not in names, names
    """,
        **{name: value},
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there are no teams on one core")
def test_a_team_sleeps_when_a_loop_ends() -> None:
    """Seven times in each kernel, unless the user configures how OpenMP waits."""
    run_script(
        _TWO_TEAMS
        + _SLEEPS
        + """
    def named(name):
        return [number for number, thread in threads().items() if (thread / "comm").read_text() == name + "\\n"]

    for _ in range(5):
        step()
    team, before = named("xla_cpu_kernels"), sleeps()
    for _ in range(40):
        step()
    after = sleeps()
    assert len(team) == cores
    of_each_kernel = max(after[number] - before[number] for number in team) / 40 / 6
    assert of_each_kernel > 4, of_each_kernel
    assert len(named("xla_omp_sleeper")) == cores + 1
    """
    )


def test_one_thread_starts_no_team() -> None:
    """The ranks of torchrun have one thread each by default."""
    run_script(
        _TWO_TEAMS
        + """
    torch.set_num_threads(1)
    for _ in range(3):
        step()
    names = [(thread / "comm").read_text().strip() for thread in threads().values()]
    assert names.count("xla_cpu_kernels") == 1 and "xla_omp_sleeper" not in names, names
    """
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there are no teams on one core")
def test_a_changed_affinity_is_followed_and_kept() -> None:
    """As of `taskset -ap`: the next kernels use one thread, on the remaining core."""
    run_script(
        _TRAIN
        + """
    import os, time
    from pathlib import Path

    def masks():
        return {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}

    def team():  # the threads for kernels that ran in a step
        def ran():
            paths = Path("/proc/self/task").iterdir()
            team = [path for path in paths if (path / "comm").read_text() == "xla_cpu_kernels\\n"]
            return {path.name: int((path / "schedstat").read_text().split()[0]) for path in team}
        before = ran()
        step(1)
        return {name for name, after in ran().items() if after > before.get(name, 0)}

    cores = os.sched_getaffinity(0)
    torch.set_num_threads(len(cores))
    for seed in range(5):
        step(seed)
    assert all(mask == cores for mask in masks().values()), "nothing is bound"
    assert len(team()) == len(cores)
    one = {min(cores)}
    for thread in masks():
        os.sched_setaffinity(int(thread), one)
    time.sleep(1.1)
    for seed in range(5):
        step(seed)
    assert all(mask == one for mask in masks().values()), "and nothing is bound elsewhere"
    assert torch.get_num_threads() == len(cores), "the setting is the user's"
    assert len(team()) == 1
    """
    )


_LARGE_LOOPS = """
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    from pathlib import Path

    def step():
        torch.manual_seed(0)
        x, w, b = (torch.randn(*shape).to("xla").requires_grad_() for shape in [(3000, 700), (700,), (700,)])
        optimizer = torch.optim.Adam([x, w, b], foreach=True)
        for _ in range(20):
            optimizer.zero_grad()
            torch.nn.functional.layer_norm(x, (700,), w, b).pow(3).sum().backward()
            optimizer.step()
            torch_xla.sync()
        return [each.detach().cpu() for each in (x, w, b)]

    def has_kernel_thread():
        return "xla_cpu_kernels\\n" in [(path / "comm").read_text() for path in Path("/proc/self/task").iterdir()]
    """


def test_large_loops_run_on_the_pool_of_xla() -> None:
    """The reductions of layer norm and the optimizer's lists: same bits for each number of threads."""
    run_script(
        _LARGE_LOOPS
        + """
    torch.set_num_threads(2)
    two = step()
    torch.set_num_threads(1)
    assert all(map(torch.equal, two, step()))
    assert met.counter_value("CpuKernelCalls") and not has_kernel_thread()
    """,
        TORCH_XLA_COMPILE_POLICY="compile",
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA's pool has one thread on one core")
def test_threads_of_the_pool_share_a_loop() -> None:
    """In one launch of an optimizer step, whose program is one call of the kernel for lists."""
    run_script(
        _LARGE_LOOPS
        + """
    x = torch.zeros(8_000_000, device="xla", requires_grad=True)
    x.grad = torch.ones_like(x)
    optimizer = torch.optim.Adam([x], foreach=True)

    def run_times():
        tasks = list(Path("/proc/self/task").iterdir())
        return {path: int((path / "schedstat").read_text().split()[0]) for path in tasks}

    def shared_launches():
        found = 0
        for _ in range(20):
            torch_xla.sync(wait=True)
            before = run_times()
            optimizer.step()
            torch_xla.sync(wait=True)
            ran = sorted(after - before.get(path, 0) for path, after in run_times().items())
            found += ran[-2] > ran[-1] / 5
        return found

    torch.set_num_threads(2)
    shared_launches()  # compiles
    shared = shared_launches()
    torch.set_num_threads(1)
    alone = shared_launches()
    assert shared > 10 > 2 >= alone, (shared, alone)
    """,
        TORCH_XLA_COMPILE_POLICY="compile",
    )


def test_large_loops_need_no_second_thread() -> None:
    run_script(
        _LARGE_LOOPS
        + """
    step()
    assert met.counter_value("CpuKernelCalls") and not has_kernel_thread()
    """,
        NPROC="1",
        TORCH_XLA_COMPILE_POLICY="compile",
    )


def test_several_threads_at_once() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(8, 16, 32, 32), torch.randn(32, 16, 3, 3)
    expected = [torch.conv2d(x * n, w) for n in range(4)]
    found: dict[int, torch.Tensor] = {}

    def run(n: int) -> None:
        found[n] = torch.conv2d((x * n).to("xla"), w.to("xla")).cpu()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        torch.testing.assert_close(found[n], expected[n], rtol=1e-3, atol=1e-2)


def test_the_process_may_end_while_a_kernel_runs() -> None:
    script = """
    import gc, torch, torch_xla
    gc.unfreeze()  # the end of the interpreter is tested
    x, w = torch.randn(32, 64, 64, 64).to("xla"), torch.randn(64, 64, 3, 3).to("xla")
    for _ in range(10):
        x = torch.conv2d(x, w, padding=1)
    torch_xla.sync()
    """
    run_script(script)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs are XLA's own then, and a warning says what is missing."""
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "_located", None)
    monkeypatch.setattr(
        library, "build_or_find", lambda extension: build.build_or_find(replace(extension, cache=tmp_path))
    )
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    monkeypatch.setattr(build.Extension, "build_dir", lambda self: tmp_path)
    with pytest.warns(RuntimeWarning, match="cannot build its CPU kernels: a C\\+\\+ compiler was not found"):
        assert library.load_library() is None
    assert library.load_library() is None  # and says it once
