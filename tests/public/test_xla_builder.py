"""Computations assembled from XLA operations match torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_builder as xb
from tests.support.helpers import assert_same, counts
from torch_xla.core import _builder, xla_op_registry

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs, "acos": torch.acos, "asin": torch.asin, "asinh": torch.asinh, "atan": torch.atan,
    "atanh": torch.atanh, "ceil": torch.ceil, "conj": torch.conj, "cos": torch.cos, "cosh": torch.cosh,
    "exp": torch.exp, "expm1": torch.expm1, "floor": torch.floor, "is_finite": torch.isfinite, "log1p": torch.log1p,
    "neg": torch.neg, "sigmoid": torch.sigmoid, "sign": torch.sign, "sin": torch.sin, "sinh": torch.sinh,
    "tan": torch.tan, "tanh": torch.tanh, "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3),
    "real": lambda x: x, "imag": torch.zeros_like, "round": lambda x: x.sign() * (x.abs() + 0.5).floor(),
    "log": lambda x: (x).log(), "sqrt": lambda x: x.sqrt(), "rsqrt": lambda x: x.rsqrt(),
    "acosh": lambda x: x.acosh(),
}  # fmt: skip
BITS = {"clz": [29, 28], "popcnt": [2, 2], "logical_not": [-6, -11]}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "rem": torch.fmod, "max": torch.maximum,
    "min": torch.minimum, "pow": torch.pow, "atan2": torch.atan2, "eq": torch.eq, "ne": torch.ne, "ge": torch.ge,
    "gt": torch.gt, "le": torch.le, "lt": torch.lt,
}  # fmt: skip


def test_every_operation_has_a_case() -> None:
    assert set(_builder._UNARY) == set(UNARY) | set(BITS)
    assert set(_builder._BINARY) == set(BINARY) | {"logical_and", "logical_or", "logical_xor"}


def _tuple(ops: list[xb.Op]) -> xb.Op:
    return xb.Op.tuple(ops)


def test_elementwise_operations() -> None:
    x, y = torch.tensor([[0.3, 0.5, 0.9]]), torch.tensor([[2.0], [0.5]])
    everything = xla_op_registry.register(
        "everything",
        lambda a, b: _tuple([getattr(a, n)() for n in UNARY] + [xb.mkop(n.title(), (a, b)) for n in ("add", "mul")]
                            + [getattr(a, n)(b) for n in BINARY]),
    )  # fmt: skip
    found = everything(x.to("xla"), y.to("xla"))
    wanted = [f(x) for f in UNARY.values()] + [x + y, x * y] + [f(x, y) for f in BINARY.values()]
    for name, f, w in zip([*UNARY, "Add", "Mul", *BINARY], found, wanted, strict=True):
        try:
            assert_same(f, w, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            raise AssertionError(name) from error
    n = torch.tensor([5, 10], dtype=torch.int32)
    bits = xla_op_registry.register("bits", lambda a: _tuple([getattr(a, name)() for name in BITS]))(n.to("xla"))
    assert [t.tolist() for t in bits] == list(BITS.values())
    a, b = (torch.tensor(v) for v in ([True, True, False], [True, False, False]))
    logic = xla_op_registry.register("logic", lambda a, b: _tuple([a & b, a | b, a ^ b, ~a]))(a.to("xla"), b.to("xla"))
    assert_same(logic, (a & b, a | b, a ^ b, ~a))


def test_shapes_selection_and_matmuls() -> None:
    x, w = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4)

    def function(x: xb.Op, w: xb.Op, scale: float = 1.0) -> xb.Op:
        b = x.builder
        zero, two = (xb.Op.scalar(b, v, xb.Type.F32) for v in (0.0, 2.0))
        index = [xb.Op.scalar(b, v, xb.Type.S32) for v in (0, 1)]
        return _tuple([
            x.dot(w) * xb.Op.scalar(b, scale), x.dot_general(w, (((1,), (0,)), ((), ()))),
            x.reshape((3, 2)), x.permute((1, 0)),
            x.broadcast((2,)), x.broadcast_in_dim((2, 3, 2), (0, 1)), x.concat_in_dim((x,), 1),
            x.slice((0, 1), (2, 3)), x.slice_in_dim(0, 3, 2, 1), x.dynamic_slice(index, (2, 2)),
            x.dynamic_update_slice(zero.broadcast((1, 1)), index), x.pad(two, [(0, 1, 0), (1, 0, 1)]), x.rev((1,)),
            x.cast(xb.Type.S64), x.bitcast(xb.Type.S32), (x > two).select(x, -x), x.clamp(zero, two),
            xb.Op.iota(b, xb.mkshape(xb.Type.S32, (2, 2)), 1), xb.Op.constant(b, torch.ones(2)),
            x.add(x.slice((0, 0), (1, 3)).reshape((3,)), broadcast_dimensions=(1,)),
        ])  # fmt: skip

    found = xla_op_registry.register("shapes", function)(x.to("xla"), w.to("xla"), scale=3.0)
    updated, padded = x.clone(), torch.full((3, 6), 2.0)
    updated[0, 1], padded[:2, 1::2] = 0, x
    wanted = [
        3 * (x @ w), x @ w, x.reshape(3, 2), x.t(), x.expand(2, 2, 3), x.unsqueeze(-1).expand(2, 3, 2),
        torch.cat((x, x), 1), x[:, 1:], x[:, ::2], x[:, 1:], updated, padded, x.flip(1), x.long(), x.view(torch.int32),
        torch.where(x > 2, x, -x), x.clamp(0, 2), torch.tensor([[0, 1], [0, 1]], dtype=torch.int32), torch.ones(2),
        x + x[0],
    ]  # fmt: skip
    assert_same(list(found), wanted)


def _of_scalars(name: str, fn: Callable[..., xb.Op], count: int = 2) -> xb.Computation:
    return xb.create_computation(name, fn, [xb.mkshape(xb.Type.F32, ())] * count)


def test_computations_within_others() -> None:
    x = torch.arange(6.0).view(2, 3)
    add, double = _of_scalars("add", lambda a, b: a + b), _of_scalars("double", lambda a: a + a, 1)
    less = _of_scalars("less", lambda a: a < xb.Op.scalar(a.builder, 100.0), 1)

    def function(x: xb.Op) -> xb.Op:
        zero = xb.Op.scalar(x.builder, 0.0)
        total = x.reduce_all(zero, add)
        grown = total.while_loop(less, double)
        chosen = (total > zero).conditional(total, double, zero, double)
        return _tuple([x.reduce(zero, add, (1,)), total, grown, chosen, total.call(add, (zero,)),
                       _tuple([total, zero]).get_tuple_element(0)])  # fmt: skip

    found = xla_op_registry.register("reduced", function)(x.to("xla"))
    wanted = [x.sum(1), x.sum(), torch.tensor(120.0), torch.tensor(30.0), x.sum(), x.sum()]
    assert_same(list(found), wanted)


def test_a_builder_makes_a_computation() -> None:
    x = torch.ones(2, 3)
    builder = xb.create_builder("sum_of_squares")
    a, b = xb.mkparam(builder, 0, xb.mkshape(xb.Type.F32, (2, 3))), xb.mkleaf(builder, 1, x)
    root = a * a + b * b
    assert str(root.shape()) == "f32[2,3]" and root.shape().rank == 2 and root.shape().numel == 6
    computation = root.build()
    assert "multiply" in xb.get_computation_hlo(computation)
    function, there = xb.xla_computation_as_func(computation), x.to("xla")
    torch_xla.sync()
    with counts() as moved:
        for _ in range(2):
            y = function(there, there * 2)
            torch_xla.sync()
    assert moved.compilations == 1
    assert_same(y, torch.full((2, 3), 5.0))
    twice = xb.jax_func_to_xla_computation(lambda a, n: {"y": a * n}, (there, 2.0), name="twice")
    assert_same(twice(there), {"y": x * 2})


def test_errors_of_the_builder() -> None:
    builder = xb.create_builder("wrong")
    a = xb.mkparam(builder, 0, xb.mkshape(xb.Type.F32, (2, 3)))
    b = xb.mkparam(builder, 1, xb.mkshape(xb.Type.S32, (2, 3)))
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: a + b, TypeError, r"operands have shapes f32\[2,3\] and s32\[2,3\]; cast one"),
        (lambda: a + 1, TypeError, r"add: expected an Op, got 1 \(int\)"),
        (lambda: a.dot(a), ValueError, r"lhs_shape=\(2, 3\) rhs_shape=\(2, 3\)"),
        (lambda: xb.mkparam(builder, 1, a.shape()), ValueError, "parameter 1 of wrong already exists"),
        (lambda: xb.mkop("Nothing", (a,)), AttributeError, "unknown operation Nothing"),
        (lambda: xb.Shape.create(xb.Type.F32, (2,), (True,)), ValueError, "dynamic dimensions are not supported"),
        (lambda: xla_op_registry.register("f", lambda a: a)(torch.ones(2)), TypeError, "expected xla tensors"),
    ]
    for call, kind, words in refused:
        with pytest.raises(kind, match=words):
            call()
