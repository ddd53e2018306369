"""Functions that return before their work is done: change each mutable argument right after the call.

The work must see the arguments as they were at the call. A function of the package that hands work to another thread,
or queues it, needs an entry in ``HANDOVERS``.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import io_callback
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import ROOT
from torch_xla._engine.data_loading import prefetch, snapshots
from torch_xla._engine.execution import step_closures
from torch_xla.core.xla_builder import call_jax
from torch_xla.distributed.checkpoint import Stager
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _checksummed_storage


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
    """Add 5 in place to a tensor or an array."""
    values += 5


#: Mutable values: how to create one, how to change it, and what is compared.
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
    """An event for which checkpoint writers wait: they read what they write after it."""
    event, plain = threading.Event(), _checksummed_storage.save

    def save(*args: Any) -> None:
        assert event.wait(60)
        plain(*args)

    monkeypatch.setattr(_checksummed_storage, "save", save)
    return event


def _fresh() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one of each, and how each is compared."""
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


def test_save_async_raises_at_the_call(tmp_path: Path) -> None:
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


#: The values above that a closure receives unchanged; other objects are shared with the program.
_COPIED = (
    "xla tensor",
    "CPU tensor",
    "array",
    "list",
    "list of tensors",
    "tuple",
    "named tuple",
    "deque",
    "OrderedDict",
)


def test_run_async() -> None:
    state, expected = _fresh()
    seen: dict[str, Any] = {}
    go = threading.Event()

    def closure(*values: Any) -> None:
        assert go.wait(60)
        seen.update(zip(_COPIED, values, strict=True))

    xm.add_step_closure(closure, [state[name] for name in _COPIED], run_async=True)
    _change(state)
    xm.mark_step()
    go.set()
    step_closures._background.wait()
    _assert_as_before(seen, {name: expected[name] for name in _COPIED})


#: Transfers to the device: what is sent, and how.
TRANSFERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda t: t.to("xla"),
    "non_blocking": lambda t: t.to("xla", non_blocking=True),
    "copy_": lambda t: torch.zeros(t.shape, device="xla").copy_(t, non_blocking=True),
    "tensor of array": lambda t: torch.tensor(t.numpy(), device="xla"),
    "as_tensor": lambda t: torch.as_tensor(t.numpy(), device="xla"),
    "from_numpy": lambda t: torch.from_numpy(t.numpy()).to("xla"),
    "assignment": lambda t: torch.zeros(2, *t.shape, device="xla").index_put_(
        (torch.tensor([0], device="xla"),), t.to("xla")
    )[0],
    "arithmetic with a scalar tensor": lambda t: torch.ones(t.shape, device="xla") * t.view(-1)[0],
    "send_cpu_data_to_device": lambda t: xm.send_cpu_data_to_device([t], "xla")[0],
}


@pytest.mark.parametrize("shape", [(3,), (64, 64)])
def test_transfers(shape: tuple[int, ...]) -> None:
    sent = []
    for transfer in TRANSFERS.values():
        values = torch.ones(shape)
        sent.append(transfer(values))
        values += 5
    torch_xla.sync()
    for name, tensor in zip(TRANSFERS, sent, strict=True):
        assert tensor.cpu().unique().tolist() == [1.0], name


_ROW = jax.ShapeDtypeStruct((3,), jnp.float32)


def _call_back(callback: Callable[..., Any], *args: Any) -> torch.Tensor:
    found: torch.Tensor = call_jax(lambda v, *rest: jax.pure_callback(callback, _ROW, v, *rest), args)
    return found


#: Calls of jax functions: argument, call, and mutation. All results are 2.
CALLS_OF_JAX: dict[str, tuple[Callable[[], Any], Callable[[torch.Tensor, Any], torch.Tensor], Callable[[Any], Any]]] = {
    "xla tensor": (lambda: torch.ones(3, device="xla"), lambda x, v: call_jax(jnp.add, (x, v)), _add_to),
    "argument": (lambda: np.ones(3, np.float32), lambda x, v: call_jax(jnp.add, (x, v)), _add_to),
    "keyword": (lambda: np.ones(3, np.float32), lambda x, v: call_jax(lambda a, b: a + b, (x,), {"b": v}), _add_to),
    "list of arrays": (
        lambda: [np.ones(3, np.float32)],
        lambda x, v: call_jax(lambda a, b: a + b[0], (x, v)),
        lambda v: (_add_to(v[0]), v.clear()),
    ),
    "dict": (lambda: {"b": 1.0}, lambda x, v: call_jax(lambda a, b: a + b["b"], (x, v)), lambda v: v.update(b=6.0)),
    "closure over an array": (
        lambda: np.ones(3, np.float32),
        lambda x, v: call_jax(lambda a: a + v, (x,)),
        _add_to,
    ),
    "closure over a list": (
        lambda: [1.0],
        lambda x, v: call_jax(lambda a: a + v[0], (x,)),
        lambda v: v.__setitem__(0, 6.0),
    ),
    "closure over an array of jax that shares its memory": (
        lambda: np.ones(3, np.float32),
        lambda x, v: (lambda shared: call_jax(lambda a: a + shared, (x,)))(jnp.asarray(v)),
        _add_to,
    ),
    "tensor of a callback": (
        lambda: torch.ones(3, device="xla"),
        lambda x, v: _call_back(lambda a, b: np.asarray(a) + np.asarray(b), x, v),
        _add_to,
    ),
    "array of a callback": (
        lambda: np.ones(3, np.float32),
        lambda x, v: _call_back(lambda a, b: np.asarray(a) + np.asarray(b), x, v),
        _add_to,
    ),
    "array of an io_callback": (
        lambda: np.ones(3, np.float32),
        lambda x, v: call_jax(lambda a: io_callback(lambda b, c: np.asarray(b) + np.asarray(c), _ROW, a, v), (x,)),
        _add_to,
    ),
}


@pytest.mark.parametrize("is_ready", [False, True])
def test_calls_of_jax(is_ready: bool) -> None:
    """Also with computed tensors, whose buffers the next program may overwrite."""
    found = []
    for make, call, change in CALLS_OF_JAX.values():
        x, value = torch.ones(3, device="xla"), make()
        if is_ready:
            torch_xla.sync()
        found.append(call(x, value))
        change(value)
        x += 5
    torch_xla.sync()
    assert dict(zip(CALLS_OF_JAX, (r.tolist() for r in found), strict=True)) == dict.fromkeys(CALLS_OF_JAX, [2.0] * 3)


@pytest.mark.parametrize("size", [3, 1 << 16])
@pytest.mark.parametrize("kind", [jax.pure_callback, io_callback])
def test_buffers_of_callbacks(kind: Callable[..., Any], size: int) -> None:
    """A callback may return one buffer each time, refilled, and store its argument."""
    buffer, kept = np.zeros(size, np.float32), []

    def refill(array: Any) -> np.ndarray:
        kept.append(array)
        buffer[:] = np.asarray(array) * 2
        return buffer

    x = torch.ones(size, device="xla")
    results = []
    for _ in range(4):
        results.append(call_jax(lambda v: kind(refill, jax.ShapeDtypeStruct((size,), jnp.float32), v), (x,)))
        x += 1
        torch_xla.sync()
    xm.wait_device_ops()
    buffer[:] = 99
    assert [r.cpu().unique().tolist() for r in results] == [[2.0], [4.0], [6.0], [8.0]]
    assert [np.unique(np.asarray(array)).tolist() for array in kept] == [[1.0], [2.0], [3.0], [4.0]]


def test_from_the_device() -> None:
    """Reading a tensor copies it, and a pending tensor is saved with its value at the call."""
    x = torch.ones(4, device="xla") * 2
    file, read, array = io.BytesIO(), x.to("cpu", non_blocking=True), x.cpu().numpy()
    torch.save({"x": x}, file)
    x += 5
    torch_xla.sync()
    file.seek(0)
    assert read.tolist() == array.tolist() == torch.load(file)["x"].tolist() == [2.0] * 4


#: Objects that a loader may yield repeatedly, refilled: how to create one, how to refill it, and what is compared.
REFILLED: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda: torch.zeros(3), lambda v, i: v.fill_(i), torch.Tensor.tolist),
    "large tensor": (
        lambda: torch.zeros(512, 512),
        lambda v, i: v.fill_(i),
        lambda v: [v.min().item(), v.max().item()],
    ),
    "view": (lambda: torch.zeros(4, 3).t()[1:], lambda v, i: v.fill_(i), torch.Tensor.tolist),
    "xla tensor": (lambda: torch.zeros(3, device="xla"), lambda v, i: v.fill_(i), torch.Tensor.tolist),
    "array": (lambda: np.zeros(3), lambda v, i: v.fill(i), lambda v: v.tolist()),
    "tensor of an array": (lambda: torch.from_numpy(np.zeros(3)), lambda v, i: v.numpy().fill(i), torch.Tensor.tolist),
    "list": (lambda: [0], lambda v, i: v.append(i), list),
    "dict of tensors": (
        lambda: {"x": torch.zeros(2), "text": ""},
        lambda v, i: (v["x"].fill_(i), v.update(text=f"row {i}")),
        lambda v: [v["x"].tolist(), v["text"]],
    ),
    "dict of other tensors": (dict, lambda v, i: v.update(x=torch.ones(2) * i), lambda v: v["x"].tolist()),
    "named tuple": (
        lambda: Pair(torch.zeros(2), np.zeros(2)),
        lambda v, i: (v.first.fill_(i), v.second.fill(i)),
        lambda v: [v.first.tolist(), v.second.tolist()],
    ),
    "dataclass": (
        lambda: Config(torch.zeros(2), 0.1),
        lambda v, i: (v.table.fill_(i), setattr(v, "rate", i)),
        lambda v: [v.table.tolist(), v.rate],
    ),
    "object of arrays": (
        lambda: Plain([np.zeros(2)]),
        lambda v, i: v.values[0].fill(i),
        lambda v: v.values[0].tolist(),
    ),
    "deque": (lambda: collections.deque([0], 2), lambda v, i: v.append(i), list),
    "bytearray": (lambda: bytearray(1), lambda v, i: v.append(i), bytes),
}


class Refilling(IterableDataset[Any]):
    """Yields one object of each kind, changed in place for each batch."""

    def __init__(self, collect: Callable[[dict[str, Any]], Any] = dict) -> None:
        self._collect = collect

    def __iter__(self) -> Iterator[Any]:
        batch = {name: make() for name, (make, _, _) in REFILLED.items()}
        for i in range(6):
            for name, value in batch.items():
                REFILLED[name][1](value, i)
            yield self._collect(batch)


def _shown(batches: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: REFILLED[name][2](value) for name, value in batch.items()} for batch in batches]


#: Loaders that refill one batch, and their options.
REFILLING: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "iterable": (Refilling, {}),
    "iterable, read ahead": (Refilling, {"loader_prefetch_size": 4}),
    "several threads": (Refilling, {"loader_prefetch_size": 4, "host_to_device_transfer_threads": 2}),
    "one size": (Refilling, {"loader_prefetch_size": 4, "fixed_batch_size": True}),
    "DataLoader without batches": (lambda: DataLoader(Refilling(), batch_size=None, collate_fn=dict), {}),
    "DataLoader with a collate_fn": (
        lambda: DataLoader(Refilling(), batch_size=1, collate_fn=lambda rows: rows[0]),
        {},
    ),
}


@pytest.mark.parametrize("name", REFILLING)
def test_refilled_batches(name: str) -> None:
    make, options = REFILLING[name]
    assert _shown(MpDeviceLoader(make(), "xla", **options)) == _shown(Refilling())


def test_refilled_batches_for_several_devices() -> None:
    """The batches of a group are read before the first one is sent."""
    devices = (torch.device("xla:0"), torch.device("xla:1"))
    feed = prefetch.PrefetchFeed(Refilling(), prefetch.PrefetchOptions(devices, place=lambda batch, device: batch))
    assert _shown(feed.get(i % 2) for i in range(6)) == _shown(Refilling())
    feed.close()


def test_loaders_that_allocate_are_not_copied() -> None:
    """Loaders that are known to allocate each batch are prefetched without a copy on the host."""
    rows = TensorDataset(torch.arange(4.0))
    own = ([torch.ones(1)], (torch.ones(1),), DataLoader(rows), DataLoader(rows, batch_size=2, num_workers=1))
    assert all(map(snapshots.has_own_batches, own))
    other = (Refilling(), DataLoader(rows, batch_size=None), DataLoader(rows, collate_fn=list), iter([]))
    assert not any(map(snapshots.has_own_batches, other))


#: Modules that hand work over (``.run(``, ``.submit(``, ``Thread(`` and the like), and what protects the arguments.
HANDOVERS = {
    "_engine/diagnostics/compile_progress.py": "own text",
    "_engine/diagnostics/profiler_spans.py": "own records",
    "_engine/diagnostics/completion.py": "own records",
    "_engine/execution/background_threads.py": "test_run_async, test_save_async",
    "_engine/execution/step_closures.py": "test_run_async",
    "_engine/compilation/persistent_cache/prefetch.py": "own files",
    "_engine/data_loading/prefetch.py": "test_refilled_batches",
    "_engine/job/liveness.py": "own connections",
    "_engine/job/program_exchange.py": "own counter",
    "_engine/lowering/decompose.py": "waits",
    "_engine/parallel/watchdog.py": "own records",
    "cli/plan/worker.py": "no arguments",
    "debug/profiler.py": "immutable arguments",
    "distributed/_parent_death.py": "an internal handle",
    "distributed/data_parallel.py": "waits",
    "distributed/launcher/launch.py": "waits",
    "distributed/launcher/worker_process.py": "own streams",
    "doctor/device_check.py": "own streams",
    "experimental/callback.py": "receives the tensor itself, as documented; its value is computed before",
    "experimental/distributed_checkpoint/manager.py": "test_save_async",
    "utils/closures.py": "a closure without arguments",
    "utils/utils.py": "waits",
}

_HANDS_OVER = {"Thread", "Timer", "ThreadPoolExecutor", "ThreadPool", "start_new_thread", "submit"}
_RUNNERS = {"_background", "_runner", "_writer", "_runner()"}


def _hands_over(file: Path) -> bool:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            owner = ast.unparse(node.func.value).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
            if name in _HANDS_OVER or name == "Runner" or (name == "run" and owner in _RUNNERS):
                return True
    return False


def test_each_handover_is_listed() -> None:
    package = ROOT / "torch_xla"
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if _hands_over(file)}
    assert found == set(HANDOVERS)
