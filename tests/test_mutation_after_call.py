"""APIs that return before their work is done: each mutable argument is changed right after the call.

The work sees the arguments as they were at the call. ``CASES`` has a case for each API and kind of argument; a source
line of the package that hands work to another thread, or queues it, needs an entry in ``HANDOVERS``.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from torch_xla.distributed.checkpoint import Stager
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _storage


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Config:
    table: Any
    rate: float


class Plain:
    def __init__(self, values: Any) -> None:
        self.values = values


def _add_to(values: Any) -> None:
    """Adds 5 in place to a tensor or an array."""
    values += 5


#: Values that can change: how to make one, how to change it, and what is compared.
MUTABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "xla tensor": (lambda: torch.ones(3, device="xla"), _add_to, torch.Tensor.tolist),
    "CPU tensor": (lambda: torch.ones(3), _add_to, torch.Tensor.tolist),
    "array": (lambda: np.ones(3), _add_to, np.ndarray.tolist),
    "list": (lambda: [1, 2], lambda v: v.append(3), list),
    "list of tensors": (
        lambda: [torch.ones(2), np.ones(2)],
        lambda v: [_add_to(x) for x in v],
        lambda v: [x.tolist() for x in v],
    ),
    "tuple": (
        lambda: (np.ones(2), torch.ones(2)),
        lambda v: [_add_to(x) for x in v],
        lambda v: [x.tolist() for x in v],
    ),
    "named tuple": (
        lambda: Pair(torch.ones(2), np.ones(2)),
        lambda v: [_add_to(x) for x in v],
        lambda v: [x.tolist() for x in v],
    ),
    "deque": (lambda: collections.deque([1.0, 2.0]), lambda v: v.append(3), list),
    "OrderedDict": (
        lambda: collections.OrderedDict(a=np.ones(2)),
        lambda v: _add_to(v["a"]),
        lambda v: v["a"].tolist(),
    ),
    "dataclass": (
        lambda: Config(np.ones(2), 0.1),
        lambda v: (_add_to(v.table), setattr(v, "rate", 9)),
        lambda v: [v.table.tolist(), v.rate],
    ),
    "dataclass of tensors": (
        lambda: Config(torch.ones(2, device="xla"), 0.1),
        lambda v: _add_to(v.table),
        lambda v: v.table.tolist(),
    ),
    "object": (lambda: Plain([1]), lambda v: v.values.append(2), lambda v: list(v.values)),
    "bytearray": (lambda: bytearray(b"ab"), lambda v: v.extend(b"c"), bytes),
    "set": (lambda: {1, 2}, lambda v: v.add(3), sorted),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writers of checkpoints wait for it: what they write, they read after that."""
    event, plain = threading.Event(), _storage.save

    def save(*args: Any) -> None:
        assert event.wait(60)
        plain(*args)

    monkeypatch.setattr(_storage, "save", save)
    return event


def _fresh() -> tuple[dict[str, Any], dict[str, Any]]:
    """One of each, and what each is compared by."""
    state = {name: make() for name, (make, _, _) in MUTABLE.items()}
    return state, {name: MUTABLE[name][2](value) for name, value in state.items()}


def _change(state: dict[str, Any]) -> None:
    for name, value in state.items():
        MUTABLE[name][1](value)


def _assert_as_before(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {name: MUTABLE[name][2](value) for name, value in found.items()} == expected


@pytest.mark.parametrize("depth", ["top", "nested"])
def test_save_async(tmp_path: Path, held: threading.Event, depth: str) -> None:
    manager = CheckpointManager(str(tmp_path), save_interval=1, chkpt_on_preemption=False)
    state, expected = _fresh()
    whole: dict[str, Any] = state if depth == "top" else {"inner": [{"state": state}]}
    manager.save_async(1, whole)
    _change(state)
    held.set()
    manager.join()
    manager.save(2, whole)
    manager.restore(1, whole)
    _assert_as_before(state, expected)
    assert {name: type(value) for name, value in state.items()} == {n: type(m()) for n, (m, _, _) in MUTABLE.items()}
    manager.restore(2, whole)
    assert state["list"] == [1, 2, 3] and state["named tuple"].second.tolist() == [6.0, 6.0]


def test_save_async_refuses_at_the_call(tmp_path: Path) -> None:
    manager = CheckpointManager(str(tmp_path), save_interval=1, chkpt_on_preemption=False)
    with pytest.raises(TypeError, match="cannot pickle"):
        manager.save_async(1, {"lock": threading.Lock()})
    manager.save_async(2, {"x": 1})
    manager.join()
    assert manager.all_steps() == [2]


def test_stager() -> None:
    state, expected = _fresh()
    staged = Stager().stage(state)
    _change(state)
    _assert_as_before(staged, expected)
    assert staged["xla tensor"].device.type == "cpu"
