"""Spawn processes, and handle the failure of one of them.

Starting a process takes seconds, so one script per start method runs several jobs in sequence.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_xla.distributed.xla_multiprocessing as xmp
from tests.support import scripts
from tests.support.helpers import run_script
from torch_xla._engine.device import hardware_detection
from torch_xla._engine.job import coordination, replicas

#: Jobs of two processes that fail in different ways, forked from a process that has used no device.
FAULTS = """
    import os, signal, sys, time
    import torch, torch_xla
    import torch.multiprocessing as mp
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_multiprocessing as xmp

    def meet():
        assert xm.all_reduce("sum", torch.ones(1, device="xla")).item() == 2

    def raises(index):
        meet()
        if index == 1:
            raise ValueError("from rank 1")
        xm.all_reduce("sum", torch.ones(1, device="xla")).item()

    def killed(index):
        meet()
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        xm.all_reduce("sum", torch.ones(1, device="xla")).item()

    def exits(index):
        if index == 1:
            sys.exit(3)
        time.sleep(3600)

    def differs(index):
        x = torch.ones(2, device="xla")
        if index == 0:
            xm.all_reduce("sum", x).cpu()
        else:
            time.sleep(2)  # the later rank reports the mismatch
            xm.all_gather(x).cpu()

    def strays(index):
        x = torch.ones(2, device="xla")
        for collective in (xm.all_gather, lambda x: xm.all_reduce("sum", x)):
            collective(x).cpu()  # compiled from here on
        if index == 0:
            xm.all_reduce("sum", x).cpu()
        else:
            xm.all_gather(x).cpu()

    def ends(index, path):
        meet()
        open(path + str(index), "w").close()
        sys.exit(0)

    def gone(pids):
        for pid in pids:
            try:
                os.kill(pid, 0)
                assert False, pid
            except ProcessLookupError:
                pass

    def fails(fn, error, *texts):
        context = xmp.spawn(fn, nprocs=2, join=False, start_method="fork")
        assert len(context.processes) == 2
        try:
            while not context.join(0.01):  # as Lightning waits
                pass
        except error as caught:
            message = str(caught)
        else:
            raise AssertionError(fn)
        assert all(text in message for text in texts), message
        gone(context.pids())

    fails(raises, mp.ProcessRaisedException, "Process 1", 'ValueError: from rank 1', "in raises")
    fails(killed, mp.ProcessExitedException, "process 1", "SIGKILL")
    fails(exits, mp.ProcessExitedException, "process 1", "exit code 3")
    fails(differs, mp.ProcessRaisedException, "rank 1: torch_xla::all_gather", "rank 0: torch_xla::all_reduce")
    fails(strays, mp.ProcessRaisedException, "torch_xla::all_gather", "torch_xla::all_reduce")
    path = os.environ["WHERE"]
    assert xmp.spawn(ends, args=(path,), nprocs=2, start_method="fork") is None
    assert os.path.exists(path + "0") and os.path.exists(path + "1")
    torch.ones(1, device="xla").cpu()
    try:
        xmp.spawn(ends, args=(path,), nprocs=2, start_method="fork")
    except RuntimeError as error:
        assert "does not survive a fork" in str(error)
    else:
        raise AssertionError
    import warnings
    warnings.simplefilter("ignore", RuntimeWarning)  # jax's own, about forking
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, device="xla").cpu()
        except RuntimeError as error:
            os._exit(7 if "used before this process was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print("done")
"""


def test_failing_processes(tmp_path: Path) -> None:
    done = run_script(FAULTS, check=False, WHERE=str(tmp_path / "ended"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("done\n")


TORCHRUN = """
    import torch, torch_xla
    import torch.distributed as dist
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_backend

    def main(index):
        x = torch.ones(2, device="xla")  # a device is used before the group is created
        dist.init_process_group("xla")
        assert index == dist.get_rank() == xm.get_ordinal() and dist.get_world_size() == xm.xrt_world_size() == 2
        dist.all_reduce(x)
        assert x.tolist() == [2.0, 2.0]
        dist.destroy_process_group()

    torch_xla.launch(main)
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[4:] for line in TORCHRUN.split("\n")))
    done = subprocess.run(
        [*scripts.PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)],
        env=os.environ | scripts.server_variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _remember(index: int, where: list[int]) -> None:
    where.append(index)


def test_single_process_runs_in_place() -> None:
    where: list[int] = []
    assert xmp.spawn(_remember, args=(where,), nprocs=1) is None
    assert where == [0]


def test_invalid_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(1, device="xla").cpu()
    with pytest.raises(ValueError, match="nprocs=0 must be at least 1"):
        xmp.spawn(_remember, args=([],), nprocs=0)
    monkeypatch.setattr(hardware_detection, "detect_device_type", lambda: "CUDA")
    monkeypatch.setattr(hardware_detection, "max_local_processes", lambda: 1)
    with pytest.raises(ValueError, match="this host has 1 CUDA devices"):
        xmp.spawn(_remember, args=([],), nprocs=2)
    monkeypatch.setattr(hardware_detection, "max_local_processes", lambda: 4)
    with pytest.raises(RuntimeError, match="holds the host's CUDA devices"):
        xmp.spawn(_remember, args=([],), nprocs=2)


def test_nested_spawn_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "process_count", lambda: 2)
    with pytest.raises(RuntimeError, match="already belongs to a job of several"):
        xmp.spawn(_remember, args=([],), nprocs=2)


def test_tpu_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_detection, "detect_device_type", lambda: "TPU")
    assert hardware_detection.process_env(0, 1) == {}
    third = hardware_detection.process_env(2, 4)
    assert third["TPU_VISIBLE_CHIPS"] == third["CLOUD_TPU_TASK_ID"] == "2" and third["TPU_PROCESS_BOUNDS"] == "2,2,1"
    assert (
        third["TPU_PROCESS_ADDRESSES"].count(",") == 3 and third["TPU_PROCESS_PORT"] in third["TPU_PROCESS_ADDRESSES"]
    )
    with pytest.raises(ValueError, match="no known topology"):
        hardware_detection.process_env(0, 3)


def test_port_in_use_is_skipped() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        used = taken.getsockname()[1]
        assert coordination.reserve_port([used, 0]) != used
        with pytest.raises(OSError, match=f"in use: .{used}"):
            coordination.reserve_port([used])


def test_models_are_moved_one_at_a_time() -> None:
    model = xmp.MpModelWrapper(torch.nn.Linear(2, 1))
    assert next(model.to("xla").parameters()).device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 5) == 5


#: As in a notebook: the function cannot be imported. The CPU's threads have been used, and are used again.
SESSION = """
import os, sys, torch, torch_xla, torch_xla.core.xla_model as xm

torch.set_num_threads(2)
torch.randn(1000, 1000).exp()

def train(index):
    torch.randn(1000, 1000).exp()
    print(xm.all_reduce("sum", torch.ones(2, device="xla")).tolist(), flush=True)

if "used" in sys.argv:
    torch.ones(2, device="xla").tolist()
torch_xla.launch(train)
"""


@pytest.mark.parametrize("used", [False, True])
def test_spawn_interactive_function(used: bool) -> None:
    """The function runs in forked processes; if fork is not possible, the error contains a remedy."""
    environment = os.environ | {"CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
    words = [*scripts.PYTHON, "-c", SESSION, *(["used"] if used else [])]
    done = subprocess.run(words, capture_output=True, text=True, env=environment | scripts.server_variables())
    if used:
        assert done.returncode == 1
        assert "spawn: train was defined in a notebook or at a prompt" in done.stderr
        assert "%%writefile train.py" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("[2.0, 2.0]") == 2  # on one line if both write at the same time


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda index: None, r"<lambda> is a lambda, .*def train\(index\)"),
        (functools.partial(lambda index, n: None, n=1), "<lambda> is a lambda"),
    ],
)
def test_function_that_cannot_be_imported(fn: Callable[..., None], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        xmp.spawn(fn, nprocs=2)


def test_local_function() -> None:
    def train(index: int) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="train is a function inside another function"):
        xmp.spawn(train, nprocs=2)


def test_main_module_without_guard(tmp_path: Path) -> None:
    """One error says what to write, and the processes print nothing."""
    script = tmp_path / "script.py"
    script.write_text("import torch_xla\n\ndef main(index): pass\n\ntorch_xla.launch(main)\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=scripts.environment() | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "if __name__ == '__main__':" in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1


def test_gloo_group_names_the_xla_backend() -> None:
    code = """
    import os
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    import torch, torch_xla
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(2, device="xla")
    for call in (lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("xla")),
                 lambda: dist.all_reduce(x), lambda: dist.all_gather([x], x)):
        try:
            call()
        except RuntimeError as error:
            print('init_process_group("xla", init_method="xla://")' in str(error))
    """
    done = run_script(code, check=False)
    assert done.stdout == "True\n" * 3, done.stderr
