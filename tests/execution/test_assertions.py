"""torch._assert_async on xla tensors: checked without waiting, in each way in which a program runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import counts
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.execution import compile_policy, value_errors


@pytest.fixture(params=["compile", "eager"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Graphs are compiled, or interpreted."""
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", request.param)
    program_cache.cache.clear()
    compile_policy.reset()
    yield request.param
    compile_policy.reset()


CONDITIONS = {
    "bool": torch.tensor(True), "of one element": torch.tensor([[True]]), "integer": torch.tensor(7),
    "nan": torch.tensor(float("nan")), "complex": torch.tensor(1j), "zero": torch.tensor(0.0),
    "false": torch.tensor(False), "negative zero": torch.tensor(-0.0), "several": torch.ones(2), "none": torch.ones(0),
}  # fmt: skip


def error_of(condition: torch.Tensor, *message: str) -> str | None:
    """The first line of the error of an assertion and of a wait; None if there is none."""
    try:
        torch._assert_async(condition, *message)
        xm.wait_device_ops()
        torch_xla.sync(wait=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


@pytest.mark.parametrize("message", [(), ("",), ("the loss is zero",)], ids=["default", "empty", "given"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_values_and_errors_of_the_cpu(name: str, message: tuple[str, ...], policy: str) -> None:
    condition = CONDITIONS[name]
    moved = condition.to("xla")
    with counts() as seen:
        assert error_of(moved, *message) == error_of(condition, *message)
    assert not seen.fallbacks


def test_a_failed_assertion_names_the_line_and_loses_nothing(policy: str) -> None:
    x = torch.ones(4, device="xla")
    torch._assert_async(x.sum() == 4)
    torch._assert_async((x > 1).all(), "not above 1")
    torch._assert_async((x > 2).all(), "not above 2")
    x += 1
    with pytest.raises(RuntimeError, match=r"^not above 1\n.*at .*test_assertions.py:\d+.* is zero"):
        torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match=r"^not above 2"):
        xm.wait_device_ops()
    torch_xla.sync(wait=True)
    assert x.tolist() == [2.0] * 4


def test_an_assertion_waits_for_its_value() -> None:
    """A read of other values does not compute it; the next sync does, and a loop keeps nothing."""
    x = torch.ones(4, device="xla")
    torch._assert_async((x + 1).sum() == 0, "late")
    assert (x * 3).tolist() == [3.0] * 4
    assert value_errors.assertion_count(0) == 1
    with pytest.raises(RuntimeError, match=r"^late"):
        torch_xla.sync(wait=True)
    for _ in range(5):
        torch._assert_async((x > 0).all())
        torch_xla.sync(wait=True)
        assert value_errors.assertion_count(0) == 0


def test_an_assertion_reads_no_value_and_adds_no_graph() -> None:
    x = torch.ones(4, device="xla")

    def step() -> None:
        nonlocal x
        x = x * 0.5
        torch._assert_async((x >= 0).all())
        torch_xla.sync()

    for _ in range(4):
        step()
    with counts() as seen:
        for _ in range(4):
            step()
    assert (seen["CachedSyncTensors"], seen["UncachedSyncTensors"], seen["InterpretedGraphs"]) == (4, 0, 0)
    assert not seen.fallbacks


def test_assertions_in_captured_functions() -> None:
    """torch.compile and scan leave them out; a replayed step says why it is recorded in each call."""

    def double(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x * 2

    x = torch.full((3,), -1.0, device="xla")
    assert torch.compile(double, backend="openxla")(x).tolist() == [-2.0] * 3
    assert value_errors.assertion_count(0) == 0

    step = torch_xla.compile(double, replay=True)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        assert [step(-x).tolist() for _ in range(3)] == [[2.0] * 3] * 3
    assert [str(w.message).count("torch._assert_async") for w in raised] == [1]

    def step_and_wait() -> None:
        step(x)
        torch_xla.sync(wait=True)

    with pytest.raises(RuntimeError, match=r"^not positive"):
        step_and_wait()
