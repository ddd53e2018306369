"""XLA errors are translated to torch exceptions with the failed action, its values and the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import counts
from torch_xla._engine.compat import pjrt_execution
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.execution import transfers

MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."
BROKEN = "INTERNAL: the compiler has lost its way\n*** Begin stack trace ***\n\txla::Something()"


class _Raises:
    """A fake for a compiled program, an array or a jax function."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise jax.errors.JaxRuntimeError(self.text)


@contextmanager
def _failing(monkeypatch: pytest.MonkeyPatch, where: str, text: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        if where == "running":
            program_cache.cache.clear()
            original = pjrt_execution.raw_execute
            patch.setattr(pjrt_execution, "raw_execute", lambda compiled: (_Raises(text), original(compiled)[1]))
        elif where == "compiling":
            program_cache.cache.clear()
            patch.setattr(jax.stages.Lowered, "compile", _Raises(text))
        elif where == "reading":
            patch.setattr(transfers.np, "asarray", _Raises(text))
        else:
            patch.setattr(pjrt_execution, "put_host_array", _Raises(text))
        yield
        program_cache.cache.clear()


def _run(x: torch.Tensor) -> Callable[[], Any]:
    y = x.view(2, 3) @ x.view(3, 2)
    return lambda: (torch_xla.sync(), y)


CALLS: dict[str, tuple[str, Callable[[torch.Tensor], Callable[[], Any]]]] = {
    "running": ("running a graph of 3 ops", _run),
    "compiling": ("compiling a graph of 3 ops", _run),
    "reading": (r"reading a tensor \(torch.float32\[6\]\)", lambda x: x.cpu),
    "moving": (r"moving a tensor to the device \(torch.int64\[7\]\)", lambda x: lambda: torch.arange(7).to("xla")),
}


@pytest.mark.parametrize("where", CALLS)
def test_out_of_memory(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doing, prepare = CALLS[where]
    x, large = torch.arange(6.0).to("xla"), torch.zeros(1000, 1000).to("xla")
    call = prepare(x)
    with _failing(monkeypatch, where, MEMORY), pytest.raises(torch.OutOfMemoryError) as caught:
        call()
    text = str(caught.value)
    assert f"out of memory on xla:0 (cpu) while {doing.replace(chr(92), '')}, at {__file__}:" in text
    assert "requested: 16.00GB (RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.)" in text
    held = text[text.index("live tensors") :].split("\n")
    assert "buffers; the largest:" in held[0] and held[1].split() == ["3.81MB", "float32[1000,", "1000]"]
    if "graph" in doing:
        assert "aten::mm: float32[2, 2]" in text
    assert "smaller batch" in text
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    del large
    call()
    torch_xla.sync()
    assert x.tolist() == [0, 1, 2, 3, 4, 5], "no value is lost, and the read can be retried"


@pytest.mark.parametrize("where", CALLS)
def test_other_failures(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doing, prepare = CALLS[where]
    x = torch.arange(6.0).to("xla")
    call = prepare(x)
    with counts() as moved, _failing(monkeypatch, where, BROKEN), pytest.raises(xla_errors.XlaError) as caught:
        call()
    first, second = str(caught.value).split("\n")[:2]
    assert first == "INTERNAL: the compiler has lost its way"
    assert second == f"  while {doing.replace(chr(92), '')} on xla:0 (cpu), at {second.split(' at ')[1]}"
    assert second.split(" at ")[1].startswith(__file__)
    assert "stack trace" not in str(caught.value)
    if "graph" in doing:
        assert "aten::mm: float32[2, 2]" in str(caught.value)
    assert moved["DestroyCompileHandles"] == 0
    call()


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        (MEMORY, 1 << 34),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00GiB.", 1 << 34),
        ("Out of memory trying to allocate 1.5KB", 1536),
        ("failed to allocate request for 2.0MiB (2097152B) on device ordinal 0", 2 << 20),
        ("RESOURCE_EXHAUSTED: too many things", None),
    ],
)
def test_amounts(text: str, amount: int | None) -> None:
    assert xla_errors.requested_bytes(text) == amount


def test_real_allocation_that_fails() -> None:
    x = torch.ones(1, device="xla")
    peak = xm.get_memory_info(x.device)["peak_bytes_used"]
    huge = x.expand(1 << 24, 1 << 24)
    with pytest.raises(RuntimeError) as caught:
        (huge.clone() + 1).cpu()
    assert "xla:0" in str(caught.value) and __file__ in str(caught.value)
    del huge
    assert (x + 1).tolist() == [2]
    assert xm.get_memory_info(x.device)["peak_bytes_used"] < peak + (1 << 24), "a program that never ran used no memory"


def test_out_of_memory_without_live_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the largest buffers has an end: there may be none."""
    monkeypatch.setattr(xla_errors.recorder, "bindings", lambda: SimpleNamespace(live_buffers=lambda device: []))
    lines = xla_errors._live_buffer_lines(0)
    assert lines == ["  live tensors: none on this device; the program itself needs the memory"]
