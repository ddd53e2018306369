"""Sync reasons, as PT_XLA_DEBUG, logs and reports show them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import observer as observing
from torch_xla._engine.diagnostics import sync_reasons
from torch_xla.debug import profiler as xp
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def record() -> torch.Tensor:
    return (torch.ones(3, device="xla") + 2).exp()


def _loader() -> Any:
    return [record() for _ in MpDeviceLoader([torch.ones(1)], "xla")]


def _step() -> Any:
    with torch_xla.step():
        return record()


def _trace() -> Any:
    with xp.StepTrace("train", step_num=1):
        return record()


def _sync_in_a_trace() -> Any:
    with xp.Trace("train"):
        kept = record()
        torch_xla.sync()
    return kept


def _marked() -> Any:
    kept = record()
    xm.mark_step()
    return kept


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "sync": (_marked, sync_reasons.SYNC),
    "a sync in a trace": (_sync_in_a_trace, sync_reasons.SYNC),
    "a loader": (_loader, sync_reasons.LOADER),
    "step": (_step, sync_reasons.STEP),
    "a trace": (_trace, sync_reasons.STEP_TRACE),
    "torch_xla.compile": (lambda: torch_xla.compile(record)(), sync_reasons.COMPILED),
    "a value": (lambda: record().cpu(), sync_reasons.READ),
}


class Listener:
    """Collects the sync reasons of executed graphs."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_compile_begin(self, *_: Any) -> None:
        pass

    def on_compile_end(self, *_: Any) -> None:
        pass

    def on_launch(self, *_: Any) -> None:
        self.found.add(sync_reasons.current_sync_reason())

    def on_fallback(self, *_: Any) -> None:
        pass

    def on_step_end(self, device: int) -> None:
        pass


@pytest.mark.parametrize("name", WAYS)
def test_cause(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, cause = WAYS[name]
    torch_xla.sync()
    listener = Listener()
    monkeypatch.setattr(observing, "listeners", [listener])
    kept = way()
    assert listener.found == {cause} and kept is not None


def test_compile_runs_what_is_pending_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = record()
    listener = Listener()
    monkeypatch.setattr(observing, "listeners", [listener])
    torch_xla.compile(record)()
    assert listener.found == {sync_reasons.BEFORE_COMPILED, sync_reasons.COMPILED} and before is not None


def test_graphs_are_counted_by_function() -> None:
    """Wrappers of one function share the count of graphs; other functions and other objects have separate counts."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    short, long = torch.ones(2, device="xla"), torch.ones(3, device="xla")
    torch_xla.compile(double, max_different_graphs=1)(short)
    with pytest.raises(RuntimeError, match="one more graph"):
        torch_xla.compile(double, max_different_graphs=1)(long)
    torch_xla.compile(lambda x: x * 2, max_different_graphs=1)(long)
    for size in (short, long):
        torch_xla.compile(Model(), max_different_graphs=1)(size)
    model = Model()
    torch_xla.compile(model.forward, max_different_graphs=1)(short)
    with pytest.raises(RuntimeError, match="one more graph"):
        torch_xla.compile(model.forward, max_different_graphs=1)(long)


def test_an_interrupt_leaves_no_reason_behind() -> None:
    """Entering and leaving the scope run no Python code, where an interrupt could leave the reason set."""
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
    with sync_reasons.sync_reason("a test"):
        inside = sync_reasons.current_sync_reason()
    sys.setprofile(None)
    assert inside == "a test" and recorder.bindings().reason() is None
    assert "sync_reason" in called and not {"__enter__", "__exit__"} & set(called)
