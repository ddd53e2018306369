"""What all tests of libraries ask: trained as on the CPU, on xla, and nothing on the CPU that was not asked for."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from tests.support.helpers import READING, Counts, counts

ROOT = Path(__file__).resolve().parent.parent.parent
#: What processes start with: libraries set variables in this one as they go (accelerate LOCAL_RANK, for one).
ENVIRONMENT = dict(os.environ)


def library(name: str) -> Any:
    """The library; where it is not installed the file of tests is skipped."""
    return pytest.importorskip(name, reason=f"{name} is not installed here: make test-clients", exc_type=ImportError)


@contextmanager
def on_xla(
    model: nn.Module | None = None, dtypes: Iterable[torch.dtype] = (torch.float32,), on_cpu: Iterable[str] = ()
) -> Iterator[Counts]:
    """Only the operations ``on_cpu`` of the block run there; afterwards all parameters are on xla, in these dtypes."""
    with counts() as moved:
        yield moved
    assert set(moved.fallbacks) == set(on_cpu), moved.fallbacks
    assert moved.executions > 0
    if model is not None:
        assert_lives_on_xla(model, dtypes)


def assert_lives_on_xla(model: nn.Module, dtypes: Iterable[torch.dtype] = (torch.float32,)) -> None:
    """All parameters and buffers are on xla; the parameters have these dtypes."""
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"xla"}
    assert {p.dtype for p in model.parameters()} == set(dtypes)


def assert_nothing_on_the_cpu(known: Iterable[str] = ()) -> None:
    """Of a process of a program: from its start on, only the operations that are known ran on the CPU instead."""
    moved = set(met.executed_fallback_ops()) - {READING, *known}
    assert not moved, f"rank {xr.global_ordinal()}: {sorted(moved)}"
    assert "ExecuteTime" in met.metric_names(), "nothing ran on xla"


def replay(
    model: nn.Module,
    batches: Sequence[Any],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], torch.Tensor],
    accumulate: int = 1,
    clip: float | None = None,
    precision: torch.dtype = torch.float32,
) -> list[float]:
    """The losses of a plain loop on the CPU, under autocast where it is of another precision: the oracle."""
    losses = []
    scaler = torch.amp.GradScaler("cpu", enabled=precision == torch.float16)
    for number, batch in enumerate(batches, 1):
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            loss = loss_of(batch)
        scaler.scale(loss / accumulate).backward()
        if number % accumulate == 0 or number == len(batches):
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def assert_close(found: Iterable[Any], expected: Iterable[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Numbers, or tensors on any device, one by one."""
    torch.testing.assert_close(list(map(_on_cpu, found)), list(map(_on_cpu, expected)), rtol=rtol, atol=atol)


def _on_cpu(value: Any) -> torch.Tensor:
    return value.detach().cpu().double() if isinstance(value, torch.Tensor) else torch.tensor(float(value)).double()


def assert_same_state(model: nn.Module, other: nn.Module, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """The same parameters and buffers, by name."""
    states = model.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert_close(states[0].values(), states[1].values(), rtol, atol)


def run(command: Sequence[str], devices: int = 1, cwd: Path = ROOT, **variables: str) -> list[Any]:
    """What a command told with ``tell``. It sees so many xla devices of the CPU, and fails with the test."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    environment |= {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return [json.loads(line.partition(_MARK)[2]) for line in done.stdout.splitlines() if _MARK in line]


_MARK = "told: "


def tell(value: Any) -> str:
    """A line for ``run``; in one piece, as gloo and libraries print beside it."""
    return f"\n{_MARK}{json.dumps(value)}\n"


def program(name: str, *arguments: str, devices: int = 1, **variables: str) -> list[Any]:
    """The same of a module of this folder, in a separate interpreter."""
    return run([sys.executable, "-m", f"tests.clients.{name}", *arguments], devices, **variables)


def command_of(package: str) -> str:
    """The path of a library's command in this environment; the test is skipped where it is missing."""
    importlib.import_module(package)
    return str(Path(sys.executable).parent / package)
