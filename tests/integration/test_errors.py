"""Invalid input raises a Python exception with cause, location and remedy; the process can continue."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, int64, nn, ones, zeros
from torch.nn import functional as F

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import assert_same, counts
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.registry import ScalarOperand

Call = Callable[[str], Any]


@pytest.fixture(autouse=True)
def goes_on() -> Iterator[None]:
    """Check after the test that earlier tensors still have their values, pending or not."""
    ready, pending = torch.full((2,), 3.0).to("xla"), torch.full((2,), 2.0, device="xla")
    view = pending[1:]
    pending = pending * ready
    view += 5
    yield
    torch_xla.sync()
    assert (ready.tolist(), pending.tolist(), view.tolist()) == ([3, 3], [6, 6], [7])
    assert (pending + ready).sum().item() == 18


def _raised(call: Call, device: str = "xla") -> Exception:
    """Return the error of the call; the innermost line of this file in its traceback must be the call's line."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(device)
    mine = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
    assert mine[-1].lineno == call.__code__.co_firstlineno, "raised at another line than the user's"
    return caught.value


# Every call is one line: the line that must be in the traceback.
SHAPES: dict[str, Call] = {
    "add": lambda d: ones(2, 3, device=d) + ones(2, 4, device=d),
    "in place": lambda d: ones(2, 3, device=d).mul_(ones(4, device=d)),
    "in place grows": lambda d: ones(3, device=d).add_(ones(2, 3, device=d)),
    "mm": lambda d: ones(2, 3, device=d) @ ones(4, 5, device=d),
    "bmm": lambda d: torch.bmm(ones(2, 3, 4, device=d), ones(2, 3, 4, device=d)),
    "linear": lambda d: F.linear(ones(2, 3, device=d), ones(5, 4, device=d), ones(5, device=d)),
    "conv": lambda d: F.conv2d(ones(1, 3, 8, 8, device=d), ones(4, 2, 3, 3, device=d)),
    "cat": lambda d: torch.cat([ones(2, 3, device=d), ones(2, 4, device=d)]),
    "stack": lambda d: torch.stack([ones(2, device=d), ones(3, device=d)]),
    "view": lambda d: ones(2, 3, device=d).view(4),
    "expand": lambda d: ones(2, 3, device=d).expand(4, 3),
    "dim": lambda d: ones(2, 3, device=d).sum(2),
    "select": lambda d: ones(2, 3, device=d)[2],
    "transpose": lambda d: ones(2, device=d).transpose(0, 1),
    "where": lambda d: torch.where(ones(2, device=d) > 0, ones(3, device=d), 1.0),
    "gather": lambda d: ones(2, 3, device=d).gather(1, zeros(3, 1, dtype=int64, device=d)),
    "index": lambda d: ones(2, 3, device=d)[zeros(2, dtype=int64, device=d), zeros(3, dtype=int64, device=d)],
    "assign": lambda d: ones(2, 3, device=d).__setitem__(0, ones(2, device=d)),
    "copy": lambda d: ones(2, device=d).copy_(ones(3)),
    "layer_norm": lambda d: F.layer_norm(ones(2, 3, device=d), [4]),
    "cross_entropy": lambda d: F.cross_entropy(ones(2, 3, device=d), zeros(3, dtype=int64, device=d)),
    "squeeze": lambda d: ones(2, 1, device=d).squeeze(5),
    "split": lambda d: ones(4, device=d).split([1, 2]),
}  # fmt: skip
TYPES: dict[str, Call] = {
    "in place to int": lambda d: ones(2, dtype=int64, device=d).add_(1.5),
    "in place divide": lambda d: ones(2, dtype=int64, device=d).div_(2),
    "in place compare": lambda d: ones(2, dtype=torch.bool, device=d).mul_(2),
    "out": lambda d: torch.add(ones(2, device=d), 1, out=torch.empty(2, dtype=int64, device=d)),
    "bool minus": lambda d: ones(2, dtype=torch.bool, device=d) - ones(2, dtype=torch.bool, device=d),
    "mm of dtypes": lambda d: ones(2, 2, device=d) @ ones(2, 2, dtype=torch.float64, device=d),
    "mean of int": lambda d: ones(2, dtype=int64, device=d).mean(),
    "float index": lambda d: ones(3, device=d)[torch.tensor([float("nan")], device=d)],
    "float index of embedding": lambda d: F.embedding(torch.tensor([0.5], device=d), ones(3, 2, device=d)),
    "float gather": lambda d: ones(2, device=d).gather(0, zeros(1, device=d)),
    "float shift": lambda d: ones(2, device=d) << 1,
    "grad of int": lambda d: ones(2, dtype=int64, device=d).requires_grad_(),
    "backward of many": lambda d: ones(2, device=d, requires_grad=True).exp().backward(),
    "item of many": lambda d: ones(2, device=d).item(),
    "bool of many": lambda d: bool(ones(2, device=d)),
    "int of NaN": lambda d: int(torch.tensor(float("nan"), device=d)),
    "tensor as index": lambda d: [1, 2][ones(1, device=d)],
}  # fmt: skip


def _words(error: Exception) -> str:
    return str(error).split("\n")[0].replace("xla:0", "cpu")


@pytest.mark.parametrize("name", SHAPES)
def test_shape_errors_match_torch(name: str) -> None:
    got, expected = _raised(SHAPES[name]), _raised(SHAPES[name], "cpu")
    assert isinstance(got, type(expected))
    assert _words(expected) in _words(got)


@pytest.mark.parametrize("name", TYPES)
def test_dtype_errors(name: str) -> None:
    got, expected = _raised(TYPES[name]), _raised(TYPES[name], "cpu")
    assert isinstance(got, type(expected))
    assert _words(expected) in _words(got)


MIXED: dict[str, Call] = {
    "add": lambda d: ones(2, device=d) + ones(2),
    "add the other way": lambda d: ones(2) + ones(2, device=d),
    "mm": lambda d: ones(2, 2, device=d) @ ones(2, 2),
    "linear": lambda d: nn.Linear(2, 2)(ones(1, 2, device=d)),
    "in place": lambda d: ones(2, device=d).add_(ones(2)),
    "cat": lambda d: torch.cat([ones(2, device=d), ones(2)]),
    "where": lambda d: torch.where(ones(2, device=d) > 0, ones(2, device=d), ones(2)),
    "out": lambda d: torch.add(ones(2, device=d), 1, out=torch.empty(2)),
    "conv": lambda d: nn.Conv1d(1, 1, 1)(ones(1, 1, 2, device=d)),
    "compare": lambda d: ones(2, device=d) == ones(2),
    "stack": lambda d: torch.stack([ones(2), ones(2, device=d)]),
    "where by the CPU": lambda d: torch.where(ones(2) > 0, ones(2, device=d), ones(2, device=d)),
    "addmm": lambda d: torch.addmm(ones(2), ones(2, 2, device=d), ones(2, 2, device=d)),
    "addcmul in place": lambda d: ones(2, device=d).addcmul_(ones(2), ones(2, device=d)),
    "into the CPU": lambda d: ones(2).add_(ones(2, device=d)),
    "out of mm": lambda d: torch.mm(ones(2, 2, device=d), ones(2, 2, device=d), out=ones(2, 2)),
    "out of max": lambda d: torch.sort(ones(2, device=d), out=(ones(2, device=d), zeros(2).long())),
    "gather": lambda d: ones(2).gather(0, zeros(1, dtype=int64, device=d)),
    "index of the CPU": lambda d: ones(3)[zeros(1, dtype=int64, device=d)],
    "assigned value": lambda d: ones(3, device=d).index_put_((zeros(2, dtype=int64, device=d),), ones(2)),
    "embedding": lambda d: nn.Embedding(3, 2)(zeros(1, dtype=int64, device=d)),
    "loss": lambda d: F.mse_loss(ones(2, device=d), ones(2)),
    "batch norm": lambda d: nn.BatchNorm1d(2)(ones(3, 2, device=d)),
    "foreach": lambda d: torch._foreach_add([ones(2, device=d)], [ones(2)]),
    "bmm": lambda d: torch.bmm(ones(1, 2, 2), ones(1, 2, 2, device=d)),
    "lerp": lambda d: torch.lerp(ones(2, device=d), ones(2, device=d), ones(2)),
    "einsum": lambda d: torch.einsum("i,i->", ones(2, device=d), ones(2)),
    "set": lambda d: ones(2, device=d).set_(ones(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_cpu_tensor_mixed_in(name: str) -> None:
    error = _raised(MIXED[name])
    assert isinstance(error, RuntimeError)
    first, *rest = str(error).split("\n")
    assert first.startswith("Expected all tensors to be on the same device, but got ")
    assert re.fullmatch("  Input tensor is not an XLA tensor: torch.(Float|Long|Bool)Tensor", rest[0])
    assert "aten::" in rest[1] and ".to('xla" in rest[1]


@pytest.mark.parametrize("dtype", ["Double", "Long", "Bool", "BFloat16", "ComplexFloat"])
def test_names_of_cpu_tensors(dtype: str) -> None:
    kinds = {"Double": torch.float64, "Long": int64, "Bool": torch.bool, "BFloat16": torch.bfloat16,
             "ComplexFloat": torch.complex64}  # fmt: skip
    with pytest.raises(RuntimeError, match=f"\n  Input tensor is not an XLA tensor: torch.{dtype}Tensor"):
        ones(2, device="xla") * ones(2, dtype=kinds[dtype])


def test_numbers_and_zero_dim_cpu_tensors_are_accepted() -> None:
    x = ones(2, device="xla")
    two = torch.tensor(2.0)
    for result in (x + two, two.double() * x + 1, x.to(int64) + two, x + two.long(), x.add_(two)):
        assert result.tolist() == [3, 3] and result.dtype == torch.float32
    assert torch.where(x > 0, x, torch.tensor(0.0)).tolist() == [3, 3]
    x[0] = torch.tensor(9.0)
    assert x.tolist() == [9, 3]


def test_argument_that_is_not_an_xla_tensor_is_named() -> None:
    for call, argument in (
        (lambda: torch.add(ones(2, device="xla"), 1, out=ones(2)), "out"),
        (lambda: torch.where(ones(2, device="xla") > 0, ones(2, device="xla"), ones(2)), "other"),
        (lambda: ones(2, device="xla").lerp_(ones(2), 0.5), "end"),
    ):
        with pytest.raises(RuntimeError, match=f"argument '{argument}' is Float.2. on cpu"):
            call()


INDICES: dict[str, Call] = {
    "read": lambda d: torch.arange(6.0, device=d).view(2, 3)[torch.tensor([1, 0])],
    "read two": lambda d: torch.arange(6.0, device=d).view(2, 3)[torch.tensor([[1], [0]]), torch.tensor([2, 0])],
    "read one of two": lambda d: torch.arange(6.0, device=d).view(2, 3)[torch.tensor([1]), torch.tensor([2], device=d)],
    "read by list": lambda d: torch.arange(6.0, device=d).view(2, 3)[[1, 0]],
    "write": lambda d: torch.zeros(3, device=d).index_put_((torch.tensor([1, 2]),), ones(2, device=d)),
    "write number": lambda d: (x := torch.zeros(3, device=d), x.__setitem__(torch.tensor([2, 0]), 5.0))[0],
    "accumulate": lambda d: torch.zeros(3, device=d).index_put((torch.tensor([1, 1]),), ones(2, device=d), True),
    "write by mask": lambda d: (x := ones(3, device=d), x.__setitem__(torch.tensor([True, False, True]), 5.0))[0],
    "gradient": lambda d: torch.autograd.grad((x := ones(3, device=d, requires_grad=True))[torch.tensor([1])].sum(), x),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_indices_may_be_on_the_cpu(name: str) -> None:
    """CPU indices are accepted, as on other devices."""
    with counts() as moved:
        assert_same(INDICES[name]("xla"), INDICES[name]("cpu"))
    assert moved.fallbacks == set()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: ones(2, device=d),
        lambda d: ones(2).to(d),
        lambda d: torch.rand(2, device=d),
        lambda d: nn.Linear(2, 2).to(d),
        lambda d: torch.tensor([1.0], device=d),
    ],
)
def test_nonexistent_device(make: Call) -> None:
    error = _raised(make, "xla:9")
    assert isinstance(error, RuntimeError)
    assert "xla:9 does not exist: this process has 1 xla device (xla:0)" in str(error)
    assert "CPU_NUM_DEVICES" in str(error)


@pytest.mark.parametrize("call", [torch_xla.device, xm.xla_device])
@pytest.mark.parametrize("error", [IndexError, RuntimeError])  # as in upstream's functions, and as in torch
def test_device_by_number(call: Callable[[int], object], error: type[Exception]) -> None:
    for number in (9, -2):
        with pytest.raises(error, match=f"^xla:{number} does not exist"):
            call(number)


def _quantized() -> Tensor:
    return torch.quantize_per_tensor(ones(2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*quantiz.*", "ignore:Sparse", "ignore:torch_xla")
@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda d: torch.eye(2).to_sparse().to(d), "to_dense"),
        (lambda d: torch.eye(2).to_sparse_csr().to(d), "to_dense"),
        (lambda d: torch.eye(2).to_sparse_bsr((1, 1)).to(d), "to_dense"),
        (lambda d: ones(2, 2, device=d).to_sparse_csr(), "dense"),
        (lambda d: ones(2, 2, device=d).to_sparse_csc(), "dense"),
        (lambda d: ones(2, 2, device=d).to_sparse(), "dense"),
        (lambda d: ones(2, 2, device=d) @ torch.eye(2).to_sparse(), "dense|not an XLA tensor"),
        (
            lambda d: torch.sparse_coo_tensor(zeros(1, 1, dtype=int64, device=d), ones(1, device=d), (2,)),
            "dense",
        ),
        (lambda d: _quantized().to(d), "dequantize"),
        (lambda d: torch.quantize_per_tensor(ones(2, device=d), 0.1, 0, torch.qint8), "quant"),
        (lambda d: ones(2, device=d) + _quantized(), "dequantize"),
        (lambda d: ones(2, device=d).copy_(_quantized()), "dequantize"),
        (lambda d: torch.empty(2, 2, layout=torch.sparse_coo, device=d), "dense"),
        (lambda d: ones(2, device=d).to_mkldnn(), "mkldnn layout: xla"),
    ],
    ids=[
        "sparse",
        "csr",
        "bsr",
        "to_sparse_csr",
        "to_sparse_csc",
        "to_sparse",
        "mm",
        "coo",
        "quantized",
        "quantize",
        "quantized add",
        "quantized copy",
        "empty",
        "mkldnn",
    ],
)
def test_unsupported_layouts(call: Call, advice: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=advice):
        call("xla")


def test_products_of_two_dtypes() -> None:
    a, b = ones(2, 3, device="xla", dtype=torch.bfloat16), ones(3, 2, device="xla", dtype=torch.bool)
    message = r"expected scalar type BFloat16 but found Bool \(aten::bmm of BFloat16 and Bool\): convert the operands"
    with pytest.raises(RuntimeError, match=message):
        torch.einsum("ij,jk->ik", a, b)
    assert torch.einsum("ij,jk->ik", a, b.to(a.dtype)).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_streams_and_events_of_cpp() -> None:
    with torch.Stream(device="xla"):
        assert ones(2, device="xla").tolist() == [1, 1]
    for call in (torch.Event("xla").record, torch.Stream(device="xla").synchronize, torch.Stream(device="xla").query):
        with pytest.raises(NotImplementedError, match=r"on xla: use torch\.xla\.(Event|Stream)"):
            call()


def test_errors_in_backward() -> None:
    x = ones(2, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x * 2).backward(ones(3, device="xla"))
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


def _fail(*args: Any) -> Any:
    raise ValueError("no such thing in this world")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (_fail, r"aten::sinh\(float32\[2, 3\]\): could not lower to XLA: no such thing in this world"),
        (
            lambda x: x.astype(jnp.int32),
            r"aten::sinh: result 0 of the lowering is int32\[2, 3\], torch declares float32\[2, 3\]",
        ),
        (lambda x: x[0], r"aten::sinh: result 0 of the lowering is float32\[3\], torch declares float32\[2, 3\]"),
        (lambda x: (x, x), "aten::sinh: the lowering returns 2 results, torch declares 1"),
        (lambda x: np.asarray(x), "aten::sinh"),
    ],
    ids=["raises", "dtype", "shape", "results", "numpy of a tracer"],
)
def test_failing_lowering_rule(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any], message: str) -> None:
    program_cache.cache.clear()
    x = torch.full((2, 3), 2.0).to("xla")
    before = x.add_(1)  # in place: its old buffer must be retained
    with monkeypatch.context() as patch:
        patch.setitem(RULES, "aten::sinh", dataclasses.replace(RULES["aten::sinh"], function=rule, ctx=False))
        y = x.sinh()
        for ask in (torch_xla.sync, y.cpu):
            with counts() as moved, pytest.raises(RuntimeError, match=message):
                ask()
            assert moved.executions == (ask is torch_xla.sync), "the addition runs without it"
        torch_xla.sync()  # does not raise a second time
    assert torch.allclose(y.cpu(), torch.full((2, 3), 3.0).sinh()), "it runs after its rule is fixed"
    assert before.sum().item() == 18


def test_failed_graph_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "aten::sinh", dataclasses.replace(RULES["aten::sinh"], function=_fail, ctx=False))
    x = ones(5).to("xla")
    y, z = x.sinh(), x + 1
    assert z.tolist() == [2] * 5, "independent operations run"
    del y
    torch_xla.sync()


def test_number_operand_reaches_a_rule_as_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    rule = RULES["aten::leaky_relu"]
    spy = lambda *args: seen.append(args) or rule.function(*args)
    monkeypatch.setitem(RULES, "aten::leaky_relu", dataclasses.replace(rule, function=spy))
    F.leaky_relu(ones(7, device="xla"), 0.123).cpu()
    assert isinstance(seen[0][-1], ScalarOperand) and seen[0][-1].kind is float


def test_data_errors_do_not_stop_the_device() -> None:
    """After an index out of range the process continues."""
    x = torch.arange(3.0, device="xla")
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
        (x[torch.tensor([1, 7], device="xla")] + 1).cpu()
    assert torch.tensor([0.0, -1.0], device="xla").log().isfinite().any().item() is False


@pytest.mark.parametrize("size", [3, 80], ids=["small", "large"])  # of small matrices the CPU kernel is asked
@pytest.mark.parametrize("decompose", [torch.linalg.lu, torch.linalg.lu_factor_ex])
def test_lu_without_pivoting_raises_where_it_is_recorded(decompose: Callable[..., Any], size: int) -> None:
    x = torch.eye(size)
    there, here = (_raised(lambda device: decompose(x.to(device), pivot=False), device) for device in ("cpu", "xla"))
    assert type(here) is type(there) is RuntimeError
    assert str(there) in str(here)
    assert size == 3 and decompose is torch.linalg.lu_factor_ex or f"[{size}, {size}]); use pivot=True" in str(here)
