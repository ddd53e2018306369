"""Programs that test_devices.py runs in a process with two xla devices; each function asserts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import runtime as xr
from torch_xla._engine import recorder
from torch_xla._engine.execution import executor
from torch_xla._engine.lowering import RULES, decompose
from torch_xla.debug import memory

DEVICES = (None, "cpu", "meta", "xla", "xla:0", "xla:1", "xla:99")

#: Arguments of the ops that say where their result is made, by the name of the parameter. A tensor is made by the test.
ARGUMENTS: dict[str, Any] = {
    "size": [2, 3], "stride": [3, 1], "fill_value": 7, "low": 2, "high": 5, "start": 1.0, "end": 4.0, "step": 1.0,
    "steps": 4, "n": 4, "m": 3, "mean": 0.0, "std": 1.0, "s": 2.0, "row": 3, "col": 3,
    "window_length": 7, "periodic": True, "beta": 12.0,
}  # fmt: skip


def overloads() -> Iterator[Any]:
    """Every recorded op that takes a device."""
    for name in sorted({*RULES, *decompose.decomposition_table()}):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        op = getattr(getattr(torch.ops, space), base, None)
        op = getattr(op, overload or "default", None)
        if op is not None and any(a.name == "device" for a in op._schema.arguments):
            yield op


def call(op: Any, place: str | None, tensor: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """Call the op with device=place and arguments created by ``tensor``."""
    args: list[Any] = []
    options: dict[str, Any] = {"device": place}
    for a in op._schema.arguments:
        if a.name == "generator":
            options["generator"] = None
        if a.has_default_value() or a.name in ("generator", "dtype", "device"):
            continue
        if str(a.type) != "Tensor":
            args.append(ARGUMENTS[a.name])
        elif a.name == "self":
            args.append(tensor((2, 3)))
        else:  # if the result is on another device, torch requires bounds on the CPU
            args.append(torch.tensor(4.0) if "_like" in op._schema.name else tensor(()))
    if op._schema.name.endswith("tril_indices"):
        options["dtype"] = torch.int64
    result: Tensor = op(*args, **options)
    return result


def settled() -> None:
    """Run the pending graphs of both devices: none is broken."""
    for ordinal in range(2):
        executor.sync_device(ordinal, wait=True)


def takes_tensor(op: Any) -> bool:
    return any(str(a.type) == "Tensor" for a in op._schema.arguments)


def expected(place: str | None, own: str) -> torch.device:
    if place is None:
        return torch.device(own)
    return torch.device("xla:0" if place == "xla" else place)


def factories() -> None:
    """Ops with a device argument create their result there, as on the CPU; unknown devices raise with their name."""
    seen = 0
    for op in overloads():
        homes = ("xla:0", "xla:1") if takes_tensor(op) else ("cpu",)
        for home in homes:
            for place in DEVICES:
                seen += 1
                _factory(op, home, place)
    assert seen > 400


def _factory(op: Any, home: str, place: str | None) -> None:
    what = f"{op} of a tensor on {home}, device={place}"

    def tensor(shape: tuple[int, ...]) -> Tensor:
        return torch.full(shape, 4.0).to(home)

    if place == "xla:99":
        with pytest.raises(RuntimeError, match="xla:99 does not exist: this process has 2 xla devices"):
            call(op, place, tensor)
        settled()
        return
    got = call(op, place, tensor)
    like = call(op, place if place in ("cpu", "meta") else "cpu", lambda shape: torch.full(shape, 4.0))
    assert got.device == expected(place, home), f"{what}: made on {got.device}"
    assert (got.shape, got.dtype, got.stride()) == (like.shape, like.dtype, like.stride()), what
    random_or_empty = any(word in str(op) for word in ("rand", "normal", "empty"))
    if place != "meta" and not random_or_empty:
        torch.testing.assert_close(got.cpu(), like)
    if got.device.type == "xla":
        assert torch.isfinite((got + 1).cpu().float()).all(), what
    settled()


def methods() -> None:
    """Python-level functions: new_tensor, Module.to_empty, out= overloads, requires_grad."""
    for home in ("xla:0", "xla:1"):
        x = torch.ones(2, 3, device=home)
        for place in DEVICES[1:-1]:
            want = expected(place, home)
            if place != "xla":  # torch documents the device of the tensor
                assert x.new_tensor([1.0], device=place).device == want
            assert x.new_ones(2, device=place, requires_grad=True).requires_grad
            assert torch.empty_like(x, device=place, dtype=torch.int8).device == want
            assert torch.nn.Linear(2, 2, device=home).to_empty(device=place).weight.device == want
            assert x.to(place).device == want
        with torch.device("cpu"):  # a default device is not an explicit device
            assert torch.zeros_like(x).device == x.device
        settled()


#: Everything public that takes a device or an ordinal.
PUBLIC: dict[str, Callable[[Any], Any]] = {
    "torch.xla.synchronize": lambda d: torch.xla.synchronize(d),
    "torch.xla.set_device": lambda d: torch.xla.set_device(d),
    "torch.xla.device": lambda d: torch.xla.device(d).__enter__(),
    "torch.xla.get_rng_state": lambda d: torch.xla.get_rng_state(d),
    "torch.xla.set_rng_state": lambda d: torch.xla.set_rng_state(torch.zeros(8, dtype=torch.uint8), d),
    "torch_xla.device": lambda d: torch_xla.device(d),
    "torch_xla.manual_seed": lambda d: torch_xla.manual_seed(1, d),
    "xm.xla_device": lambda d: xm.xla_device(d),
    "xm.get_rng_state": lambda d: xm.get_rng_state(d),
    "xm.set_rng_state": lambda d: xm.set_rng_state(1, d),
    "xm.get_memory_info": lambda d: xm.get_memory_info(d),
    "xm.xla_device_kind": lambda d: xm.xla_device_kind(d),
    "xm.xla_real_devices": lambda d: xm.xla_real_devices([d]),
    "xm.xla_device_hw": lambda d: xm.xla_device_hw(d),
    "xm.wait_device_ops": lambda d: xm.wait_device_ops([d]),
    "xr.runtime_device_attributes": lambda d: xr.runtime_device_attributes(d),
    "memory.buffers": lambda d: memory.buffers(d),
    "memory.summary": lambda d: memory.summary(d),
    "memory.no_leak": lambda d: memory.no_leak(d).__enter__(),
    "torch.Generator": lambda d: torch.Generator(device=torch.device("xla", d) if isinstance(d, int) else d),
    "torch.zeros": lambda d: torch.zeros(2, device=torch.device("xla", d) if isinstance(d, int) else d),
    "Tensor.to": lambda d: torch.zeros(2).to(torch.device("xla", d) if isinstance(d, int) else d),
    "Tensor.to of xla": lambda d: torch.zeros(2, device="xla").to(torch.device("xla", d) if isinstance(d, int) else d),
}

#: Where torch itself reads a device, or a negative ordinal changes nothing, as with torch.cuda.
ALLOWED = {
    (name, device)
    for name, devices in {
        "torch.xla.set_device": (-1, -5), "torch.xla.device": (-1, -5),
        # torch.device truncates 1 << 40 to 0.
        "torch.Generator": ("cpu", 1 << 40), "torch.zeros": ("cpu", "meta", 1 << 40),
        "Tensor.to": ("cpu", "meta", 1 << 40), "Tensor.to of xla": ("cpu", "meta", 1 << 40),
    }.items()
    for device in devices
}  # fmt: skip


def ordinals() -> None:
    """Every function with a device argument raises immediately for a missing or a non-xla device."""
    accepted = []
    for name, function in PUBLIC.items():
        for device in (2, 64, 99, 127, 300, 1 << 40, -1, -5, "cpu", "meta", "xla:2", "xla:99"):
            try:
                function(device)
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue
            accepted.append((name, device))
    assert set(accepted) == ALLOWED
    assert xm.xla_device() == torch.device("xla:0")
    settled()


def moves() -> None:
    """A module moves between xla devices and keeps its Parameter objects; assigning ``.data`` does the same."""
    model = torch.nn.Linear(2, 2).to("xla:0")
    weight, before = model.weight, model.weight.tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for place in ("xla:1", "xla:0", "xla:1"):
        model.to(place)
        assert model.weight is weight and weight.device == torch.device(place) and weight.tolist() == before
        model(torch.ones(1, 2, device=place)).sum().backward()
        assert weight.grad is not None and weight.grad.device == weight.device
        optimizer.step()
        torch_xla.sync()
        optimizer.zero_grad()
        before = weight.tolist()
        settled()
    x, y = torch.zeros(4, device="xla:0"), torch.ones(2, 3, device="xla:1")
    shown = x[1:]
    x.data = y.t()
    x.add_(1)
    assert x.tolist() == [[2.0, 2.0]] * 3 and y.tolist() == [[2.0] * 3] * 2 and shown.tolist() == [0.0] * 3
    with pytest.raises(RuntimeError, match="cannot take over the memory"):
        shown.set_(y)
    settled()


def bindings() -> None:
    """Every recorder function with an ordinal argument raises for a missing device."""
    module = recorder.bindings()
    for name in ("collect", "live_buffers", "live_nodes", "live_tensor_count", "pending_count", "buffers", "take_peak",
                 "memory_use", "get_seed", "set_current_device", "validate_ordinal"):  # fmt: skip
        for ordinal in (2, 64, 300, -1):
            with pytest.raises(RuntimeError, match=f"xla:{ordinal} does not exist"):
                getattr(module, name)(ordinal)
    for name, rest in {"set_seed": (1,), "collect_only": ([],)}.items():
        with pytest.raises(RuntimeError, match="xla:2 does not exist"):
            getattr(module, name)(2, *rest)
    plain = [name for name in dir(module) if "device: int" in (getattr(module, name).__doc__ or "")]
    known = {"collect", "collect_only", "live_buffers", "live_nodes", "live_tensor_count", "pending_count", "buffers",
             "take_peak", "memory_use", "get_seed", "set_seed", "make_tensor"}  # fmt: skip
    assert set(plain) <= known, "a new function with a device: its ordinal must be an Ordinal"


def starts_nothing() -> None:
    """Seeds and random states can be set before the backend starts, because processes fork afterwards."""
    from torch_xla._engine.device import devices

    torch.manual_seed(3)
    xm.set_rng_state(5)
    xm.set_rng_state(5, "xla:0")
    assert xm.get_rng_state() == 5
    assert torch.xla.get_rng_state(0).tolist() == [5] + [0] * 15
    torch.xla.set_device(0)
    assert not devices.backend_started()


def _foreach_calls() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for name in sorted(n for n in dir(torch) if n.startswith("_foreach_")):
        for rest in ((), ("list",), (2.0,), ([2.0, 3.0],), ("list", "list"), ("list", "list", 2.0), ("list", 0.5)):
            yield name, getattr(torch, name), rest


def _of_lists(name: str, function: Callable[..., Any], rest: tuple[Any, ...], places: list[str]) -> Any:
    lists = [[torch.full((2, 2), 1.5 + i + j).to(p) for j, p in enumerate(places)] for i in range(1 + len(rest))]
    result = function(lists[0], *(lists[i + 1] if r == "list" else r for i, r in enumerate(rest)))
    return lists[0] if name.endswith("_") else result


def foreach_lists() -> None:
    """Lists with tensors on two devices: each tensor is computed on its device as in torch, or torch raises."""
    done = 0
    for name, function, rest in _foreach_calls():
        try:
            expected = _of_lists(name, function, rest, ["cpu", "cpu"])
        except (TypeError, RuntimeError, IndexError):
            continue
        got = _of_lists(name, function, rest, ["xla:0", "xla:1"])
        if isinstance(got[0], torch.Tensor):
            assert [t.device.index for t in got] == [0, 1], name
            torch.testing.assert_close([t.cpu() for t in got], list(expected), msg=name, equal_nan=True)
            done += 1
        settled()
    assert done > 100


#: Calls with tensors on two devices that raise in torch on any device.
MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda a, b: a + b,
    "add_": lambda a, b: a.add_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "matmul": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "index": lambda a, b: a[b.long().abs() % 2],
    "index_put_": lambda a, b: a.index_put_((b.long() % 2,), a),
    "index by a mask, on the CPU": lambda a, b: a[b > 0],
    "masked_select, on the CPU": lambda a, b: torch.masked_select(a, b > 0),
    "foreach across": lambda a, b: torch._foreach_add([a], [b]),
    "foreach_ across": lambda a, b: torch._foreach_add_([a], [b]),
    "unscale": lambda a, b: torch._amp_foreach_non_finite_check_and_unscale_(
        [a], torch.zeros(1, device=b.device), b[0, 0]
    ),
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b),
    "set slice": lambda a, b: torch.slice_scatter(a, b[:1], 0, 0, 1),
    "batch_norm": lambda a, b: torch.nn.functional.batch_norm(a, b[0], b[1], training=True),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "gradient": lambda a, b: (a.requires_grad_() * 2).backward(b),
    "data": lambda a, b: a.set_(b),
}


def mixed() -> None:
    """Calls with tensors on two devices raise immediately, and leave both devices unchanged."""
    accepted = []
    for name, function in MIXED.items():
        a, b = (torch.tensor([[1.0, 2.0], [3.0, 5.0]]).to(f"xla:{i}") * (i + 2) for i in range(2))
        for first, second in ((a, b), (b, a)):
            try:
                function(first, second)
            except RuntimeError:
                pass
            else:
                accepted.append(name)
            settled()
        assert (a.detach().sum().item(), b.detach().sum().item()) == (22.0, 33.0), name
    assert accepted == []


def in_place_lists_on_the_cpu() -> None:
    """A fused optimizer step on lists over two devices, which torch.optim never issues, runs torch's CPU kernel."""
    parameters = [torch.full((2,), 1.0 + i).to(f"xla:{i % 2}") * 1 for i in range(3)]
    gradients = [torch.full((2,), 2.0).to(p.device) * 1 for p in parameters]
    torch._fused_sgd_(
        parameters, gradients, [], weight_decay=0.0, momentum=0.0, lr=0.5, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=True,
    )  # fmt: skip
    settled()
    assert [p.tolist() for p in parameters] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


PROGRAMS = (
    factories, methods, moves, ordinals, bindings, starts_nothing, foreach_lists, mixed, in_place_lists_on_the_cpu,
)  # fmt: skip
