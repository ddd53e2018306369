"""Jobs that compile each program once, for test_shared_compilation.py.

``main`` forks the processes of a job without a supervisor: what kills one does not end the others. Each writes its
counters to RANK.json.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

NAMES = ("JobProgramsCompiled", "JobProgramsFetched", "JobCompilersReplaced", "PersistentCacheHit")


def _train() -> list[float]:
    """Four steps, with local programs and programs of all ranks."""
    import torch

    import torch_xla
    import torch_xla.core.xla_model as xm

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 4), step + 2.0).to("xla")).square().mean().backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
    return model(torch.ones(2, 4).to("xla")).sum(dim=1).tolist()


def _one_rank() -> float:
    """A program that only the last rank needs; a rank that does not need it may be the one to compile it."""
    import torch

    import torch_xla.runtime as xr

    x = torch.ones(5, device="xla")
    last = xr.global_ordinal() == xr.world_size() - 1
    return float(sum((x * 3 + size).sum().item() for size in range(2, 6)) if last else x.sum().item())


def _ordinals() -> float:
    import torch

    import torch_xla.runtime as xr

    x = torch.ones(4, device="xla")
    power = x ** (xr.global_ordinal() + 2)
    return float(power.sum().item() + (x * 0.5 + xr.global_ordinal() * 2.5 + 2).sum().item())


def _deep_program() -> float:
    """A program that takes seconds to compile, which rank 0 does not need."""
    import torch

    import torch_xla.runtime as xr

    x = torch.ones(8, 8, device="xla")
    if xr.global_ordinal() == 0:
        return 0.0
    for index in range(400):
        x = torch.cumsum(x @ x * 1e-3, dim=index % 2).softmax(dim=1)
    return float(x.sum().item())


def _kill_while_compiling() -> None:
    """Kill this process with SIGKILL soon after it has become the first to compile a program."""
    from torch_xla._engine.job import coordination

    rank, store = os.environ["RANK"].encode(), coordination.coordination_client()

    def watch() -> None:
        while True:
            for key, owner in store.key_value_dir_get_bytes("torch_xla/program/"):
                if key.endswith("/owner/0") and owner == rank:
                    time.sleep(0.3)
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()


def _run(mode: str, folder: Path, rank: int) -> None:
    import torch

    import torch_xla.debug.metrics as met
    from torch_xla._engine.compilation import ordinal_constants
    from torch_xla._engine.job import program_exchange

    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    if os.environ.get("FOLDERS"):
        os.environ["XLA_PERSISTENT_CACHE_PATH"] = f"{os.environ['FOLDERS']}/{rank}"
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    ordinal_constants._log.addHandler(handler)
    warnings.filterwarnings("default", "torch_xla: could not load a program")
    if mode == "killed":
        program_exchange._HEARTBEAT_TIMEOUT = 3.0
        torch.ones(1).to("xla")  # joins the job, and compiles nothing
        _kill_while_compiling()
    value = {"train": _train, "one_rank": _one_rank, "ordinals": _ordinals, "killed": _deep_program}[mode]()
    found = {name: met.counter_value(name) or 0 for name in NAMES} | {"value": value, "messages": messages}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    if mode == "killed":  # not the end of a job: rank 0 hosts the key-value store, and would wait for the killed rank
        while rank == 0 and not (folder / "ended").exists():
            time.sleep(0.02)
        os._exit(0)


def main(mode: str, folder: Path, processes: int) -> None:
    """Run a job; print the exit codes, by rank, and return in the parent."""
    children: dict[int, int] = {}
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            _run(mode, folder, rank)
            sys.exit()
        children[pid] = rank
    codes = [0] * processes
    for count in range(processes):
        if count == processes - 1:
            (folder / "ended").touch()
        pid, status = os.wait()
        codes[children[pid]] = os.waitstatus_to_exitcode(status)
    print(codes)
