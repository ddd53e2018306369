"""Keys of cached output specs and programs contain everything that determines an op's results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from torch import Tensor

import torch_xla
import torch_xla.debug.metrics as met
from tests.fuzz.cross_feature import default_dtype
from tests.fuzz.test_random_programs import OPTIONS, PROGRAMS, run
from tests.support.helpers import assert_same
from torch_xla._engine import recorder

#: Ops whose results have the default dtype if no tensor determines it. The argument is a device.
DEFAULTS: dict[str, Callable[[str], Tensor]] = {
    "sqrt of int": lambda d: torch.tensor([1, 4], device=d).sqrt(),
    "int + float": lambda d: torch.tensor([1, 4], device=d) + 0.5,
    "bool * float": lambda d: torch.tensor([True, False], device=d) * 2.5,
    "int / int": lambda d: torch.tensor([1, 4], device=d) / torch.tensor([2, 3], device=d),
    "int / number": lambda d: torch.tensor([1, 4], device=d) / 3,
    "number / int": lambda d: 3 / torch.tensor([1, 4], device=d),
    "int ** float": lambda d: torch.tensor([1, 4], device=d) ** 0.5,
    "int * complex": lambda d: torch.tensor([1, 4], device=d) * 2j,
    "sin of int out": lambda d: torch.sin(torch.tensor([1, 4], device=d), out=torch.empty(2, device=d)),
    "atan2 of int": lambda d: torch.atan2(torch.tensor([1, 4], device=d), torch.tensor([1, 2], device=d)),
    "exp2 of int": lambda d: torch.tensor([1, 4], device=d).exp2(),
    "sigmoid of int": lambda d: torch.tensor([1, 4], device=d).sigmoid(),
    "where": lambda d: torch.where(torch.tensor([True, False], device=d), 1.5, 2.5),
    "ones": lambda d: torch.ones(2, device=d),
    "zeros": lambda d: torch.zeros(2, device=d),
    "full": lambda d: torch.full((2,), 1.5, device=d),
    "full of complex": lambda d: torch.full((2,), 1.5j, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "arange": lambda d: torch.arange(0.0, 3.0, 0.5, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.5, device=d),
    "tensor": lambda d: torch.tensor([1.5], device=d),
    "bincount with weights": lambda d: torch.tensor([1, 4], device=d).sum() * 1.5,
    "add_": lambda d: torch.tensor([1, 4], device=d).float().add_(0.5),
}

#: The same, for values of which only shape and dtype can be compared.
DRAWS: dict[str, Callable[[str], Tensor]] = {
    "rand": lambda d: torch.rand(2, device=d),
    "randn": lambda d: torch.randn(2, device=d),
    "empty": lambda d: torch.empty(2, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (2,), device=d),
}


ORDER = (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_dtype(name: str) -> None:
    """Output specs and programs cached with one default dtype are not used with another."""
    for dtype in ORDER:
        with default_dtype(dtype):
            tolerance = 2e-2 if dtype == torch.bfloat16 else None
            assert_same(DEFAULTS[name]("xla"), DEFAULTS[name]("cpu"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", DRAWS)
def test_default_dtype_of_draws(name: str) -> None:
    for dtype in ORDER:
        with default_dtype(dtype):
            got = DRAWS[name]("xla")
            assert got.dtype == got.cpu().dtype == dtype


@pytest.mark.parametrize("name", DEFAULTS)
def test_run_under_another_default(name: str) -> None:
    """A graph is lowered with the default dtype that its ops were recorded with."""
    for recorded, ran in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        with default_dtype(recorded):
            got, expected = DEFAULTS[name]("xla"), DEFAULTS[name]("cpu")
        with default_dtype(ran):
            torch_xla.sync()
            assert_same(got, expected)


def test_one_program_for_each_default() -> None:
    """Graphs that differ only in it have different keys."""
    module = recorder.bindings()
    x = torch.tensor([1, 4], device="xla")
    keys = []
    for dtype in (torch.float32, torch.float64, torch.float32):
        with default_dtype(dtype):
            y = x + 0.5
        keys.append(module.collect_only(0, module.nodes_of([y])).key)
        del y
    assert keys[0] == keys[2] != keys[1]


@pytest.fixture
def checked() -> Iterator[None]:
    recorder.bindings().verify_output_specs(True)
    yield
    recorder.bindings().verify_output_specs(False)


@pytest.mark.usefixtures("checked")
def test_output_specs_of_random_programs() -> None:
    options = settings(max_examples=40, derandomize=True, phases=(Phase.generate,), **OPTIONS)
    options(given(PROGRAMS)(run))()


def _training() -> list[Any]:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    )
    model.to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        x = torch.ones(3, 4, device="xla", requires_grad=True)
        with torch.autocast("xla", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(3, dtype=torch.long, device="xla"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


#: Global states of torch, as context managers: none changes a cached output spec.
STATES: dict[str, Callable[[], Any]] = {
    "deterministic": lambda: _deterministic(),
    "inference": torch.inference_mode,
    "default device": lambda: torch.device("xla"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", STATES)
def test_output_specs_in_other_states(name: str) -> None:
    """Record the same ops again in another global state of torch."""
    cases = {**DEFAULTS, **DRAWS}
    for function in cases.values():
        function("xla")
    _training()
    with STATES[name]():
        for function in cases.values():
            function("xla")
        if name not in ("inference", "float64", "bfloat16"):
            _training()


@pytest.mark.usefixtures("checked")
def test_a_difference_is_found() -> None:
    """verify_output_specs detects an op whose meta function depends on something outside the key."""
    library = torch.library.Library("torch_xla_signature_test", "DEF")
    library.define("changes(Tensor x) -> Tensor")
    sizes = [2]
    library.impl("changes", lambda x: x.new_empty(sizes), "Meta")
    assert recorder.bindings().register_recorded_ops("torch_xla_signature_test::changes", set(), False)
    x = torch.ones(3, device="xla")
    changes = torch.ops.torch_xla_signature_test.changes
    assert changes(x).shape == changes(x).shape == (2,)
    sizes[0] = 4
    message = r"changes: the cached output spec is Float\[2\], but inference returns Float\[4\]"
    with pytest.raises(RuntimeError, match=message):
        changes(x)


#: Elementwise ops, with shapes that no other test uses: they are not cached.
POINTWISE: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + x,
    "add number": lambda x: x + 2,
    "broadcast": lambda x: x * x[:1],
    "compare": lambda x: x > 0.5,
    "where": lambda x: torch.where(x > 0, x, -x),
    "relu": lambda x: x.relu(),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "pow": lambda x: x**2,
    "int / int": lambda x: x.long() / 3,
    "in place": lambda x: x.clone().mul_(x).add_(1),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "lists": lambda x: torch._foreach_addcdiv([x, x.double()], [x, x.double()], [x, x.double()], 0.5),
    "a list in place": lambda x: torch._foreach_mul_([x.clone(), x * 2], 3),
    "a list and numbers": lambda x: torch._foreach_div([x, x.int()], [2, 2.5]),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_needs_no_python(name: str) -> None:
    """torch's own meta functions of these are Python: a hundred microseconds, and a second for the first call."""
    x = torch.ones(1, list(POINTWISE).index(name) + 1009, 3, device="xla")
    called = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and any(part in file for part in ("_refs", "_prims_common", "_meta_registrations")):
            called.append(frame.f_code.co_name)

    before = met.counter_value("ShapeInference")
    sys.setprofile(watch)
    try:
        POINTWISE[name](x)
    finally:
        sys.setprofile(None)
    assert met.counter_value("ShapeInference") > before
    assert not called
