"""Lowering rules of matrix multiplication: mm, bmm, and the ``add*`` variants ``beta * self + alpha * (a @ b)``.

``precision_for`` determines the precision of matrix multiplications and of convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower, register, result_type

Product = Callable[..., jax.Array]

_MATRIX: lax.DotDimensionNumbers = (((1,), (0,)), ((), ()))
_BATCH: lax.DotDimensionNumbers = (((2,), (1,)), ((0,), (0,)))
_VECTOR: lax.DotDimensionNumbers = (((0,), (0,)), ((), ()))
_CPU_KERNELS = {(2, 2, _MATRIX): "mm", (3, 3, _BATCH): "bmm"}  # CPU kernels by the ranks of both operands
_MATRIX_VECTOR = (((1,), (0,)), ((), ()))
_SUM_OF_BATCH = (((0, 2), (0, 1)), ((), ()))

#: Multiplications from which ATen's CPU kernel is worth a call (docs/project/cpu_kernels.md).
_LEAST_PRODUCTS = 1 << 22


class Precision(NamedTuple):
    """The precision of matrix multiplications and convolutions of operands with 32 or more bits."""

    products: lax.Precision = lax.Precision.HIGHEST
    convolutions: lax.Precision = lax.Precision.HIGHEST


EXACT = Precision()
_precision: ContextVar[Precision] = ContextVar("precision", default=EXACT)


@contextmanager
def precision_scope(value: Precision) -> Iterator[None]:
    """Set the precision of programs that this thread traces in the block; the default is the highest, as in torch."""
    token = _precision.set(value)
    try:
        yield
    finally:
        _precision.reset(token)


def precision_for(dtype: np.dtype, convolution: bool = False) -> lax.Precision | None:
    """Return the precision for the program being traced; None for 16-bit operands, which have only one precision."""
    if dtypes.is_reduced_floating(dtype):
        return None
    return _precision.get().convolutions if convolution else _precision.get().products


def matmul_rule(dimensions: lax.DotDimensionNumbers) -> Product:
    """Return the function ``(a, b, dtype of the result or None)`` -> ``a @ b``, accumulated in float32 or wider."""

    def multiply(a: jax.Array, b: jax.Array, dtype: np.dtype | None = None) -> jax.Array:
        def xla_lowering(a: jax.Array, b: jax.Array) -> list[jax.Array]:
            return [_dot(a, b, dimensions, dtype)]

        kernel = _CPU_KERNELS.get((a.ndim, b.ndim, dimensions)) if dtype in (None, a.dtype) else None
        if kernel is None or not cpu_kernel_call.is_profitable(math.prod(a.shape) * b.shape[-1], _LEAST_PRODUCTS):
            return xla_lowering(a, b)[0]
        if not cpu_kernel_call.all_bfloat16(a, b) or 0 in (*a.shape, *b.shape):  # in float32 XLA is as fast
            return xla_lowering(a, b)[0]
        out = jax.ShapeDtypeStruct((*a.shape[:-1], b.shape[-1]), a.dtype)
        return cpu_kernel_call.cpu_kernel_call(kernel, xla_lowering, [a, b], [out])[0]

    return multiply


def _dot(a: jax.Array, b: jax.Array, dimensions: lax.DotDimensionNumbers, dtype: np.dtype | None) -> jax.Array:
    """Compute lax.dot_general, but differently where a platform's compiler needs it.

    64-bit integers on TPUs, which do not support them: multiply and sum. bfloat16 on CPUs: a barrier keeps XLA from
    folding a transpose of the result into the product. XLA of jax 0.12 adds such products up in bfloat16 (for 1024
    rows, with 12 times the error and in 5 times the time); the barrier costs nothing measurable.
    """

    def usual(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(a, b, dimensions, precision=precision_for(a.dtype), preferred_element_type=dtype)

    def separated(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.optimization_barrier(usual(a, b))

    def summed(a: jax.Array, b: jax.Array) -> jax.Array:
        (of_a, of_b), (batch_a, batch_b) = dimensions
        rows, columns = _free_dims(a, of_a, batch_a), _free_dims(b, of_b, batch_b)
        lead, common = [a.shape[i] for i in batch_a], [a.shape[i] for i in of_a]
        left, right = [a.shape[i] for i in rows], [b.shape[i] for i in columns]
        first = a.transpose(*batch_a, *rows, *of_a).reshape(*lead, math.prod(left), math.prod(common), 1)
        second = b.transpose(*batch_b, *of_b, *columns).reshape(*lead, 1, math.prod(common), math.prod(right))
        return (first * second).sum(-2, dtype=a.dtype).reshape(*lead, *left, *right)

    if a.dtype in (np.int64, np.uint64):
        return lax.platform_dependent(a, b, tpu=summed, default=usual)
    if a.dtype == jnp.bfloat16 and dtype in (None, a.dtype):
        return lax.platform_dependent(a, b, cpu=separated, default=usual)
    return usual(a, b)


def _free_dims(x: jax.Array, *dimensions: Sequence[int]) -> list[int]:
    """Return the dimensions of ``x`` that are neither contracted nor batch dimensions."""
    return [i for i in range(x.ndim) if all(i not in some for some in dimensions)]


def addmm_rule(multiply: Product) -> Callable[..., jax.Array]:
    """Return the rule ``beta * self + alpha * multiply(a, b)``."""

    def rule(self: jax.Array, a: jax.Array, b: jax.Array, beta: Operand = 1, alpha: Operand = 1) -> jax.Array:
        # Without factors the sum rounds the same in 16 bits, and XLA fuses the bias into the matmul kernel.
        wide = a.dtype if _is_scalar(alpha, 1) and (_is_scalar(beta, 0) or _is_scalar(beta, 1)) else opmath(a.dtype)
        return add_scaled(self, multiply(a, b, wide), beta, alpha).astype(a.dtype)

    return rule


def _is_scalar(x: Operand, value: int) -> bool:
    return isinstance(x, (bool, int, float, complex)) and x == value


def add_scaled(self: jax.Array, value: jax.Array, beta: Operand, alpha: Operand) -> jax.Array:
    """Compute ``beta * self + alpha * value`` in the dtype of ``value``; a beta of 0 ignores NaNs in ``self``."""
    if not _is_scalar(alpha, 1):
        value = value * convert(alpha, value.dtype)
    if _is_scalar(beta, 0):
        return value
    self = self.astype(value.dtype)
    return value + (self if _is_scalar(beta, 1) else self * convert(beta, value.dtype))


def _with_dtype(multiply: Product) -> Callable[..., jax.Array]:
    return lambda a, b, dtype: multiply(a, b, dtypes.storage_numpy_dtype(dtype))


def _add_with_dtype(multiply: Product) -> Callable[..., jax.Array]:
    def rule(
        self: jax.Array, a: jax.Array, b: jax.Array, dtype: torch.dtype, beta: Operand = 1, alpha: Operand = 1
    ) -> jax.Array:
        return add_scaled(self, multiply(a, b, dtypes.storage_numpy_dtype(dtype)), beta, alpha)

    return rule


PRODUCTS: dict[str, lax.DotDimensionNumbers] = {
    "aten::bmm": _BATCH,
    "aten::dot": _VECTOR,
    "aten::mm": _MATRIX,
    "aten::mv": _MATRIX_VECTOR,
}
ADDED_PRODUCTS: dict[str, lax.DotDimensionNumbers] = {
    "aten::addbmm": _SUM_OF_BATCH,
    "aten::addmm": _MATRIX,
    "aten::addmv": _MATRIX_VECTOR,
    "aten::baddbmm": _BATCH,
}
for _name, _dimensions in PRODUCTS.items():
    register(_name, matmul_rule(_dimensions))
for _name, _dimensions in ADDED_PRODUCTS.items():
    register(_name, addmm_rule(matmul_rule(_dimensions)))
for _name in ("aten::bmm", "aten::mm"):
    register(f"{_name}.dtype", _with_dtype(matmul_rule(PRODUCTS[_name])))
for _name in ("aten::addmm", "aten::baddbmm"):
    register(f"{_name}.dtype", _add_with_dtype(matmul_rule(ADDED_PRODUCTS[_name])))
register("aten::_int_mm", lambda a, b: matmul_rule(_MATRIX)(a, b, np.dtype(np.int32)))
register("aten::vdot", lambda a, b: matmul_rule(_VECTOR)(jnp.conj(a), b))


@lower("aten::linear")
def _linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Compute ``input @ weight.T + bias``.

    ``input`` is (..., k), ``weight`` (n, k) or (k,), ``bias`` (n,) or (); the result is (..., n) or (...).
    """
    rows = input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    columns = weight.reshape(-1, input.shape[-1]).T if weight.size else weight.T
    multiply = matmul_rule(_MATRIX)
    result = multiply(rows, columns) if bias is None else addmm_rule(multiply)(bias, rows, columns)
    return result.reshape(*input.shape[:-1], *weight.shape[:-1])


@lower("aten::_addmm_activation")
def _addmm_activation(
    self: jax.Array, a: jax.Array, b: jax.Array, beta: Operand = 1, alpha: Operand = 1, use_gelu: bool = False
) -> jax.Array:
    value = widen(addmm_rule(matmul_rule(_MATRIX))(self, a, b, beta, alpha))
    return (jax.nn.gelu(value, approximate=False) if use_gelu else jax.nn.relu(value)).astype(a.dtype)


@lower("aten::addr")
def _addr(self: jax.Array, a: jax.Array, b: jax.Array, beta: Operand = 1, alpha: Operand = 1) -> jax.Array:
    dtype = dtypes.storage_numpy_dtype(result_type(self, a, b))
    wide = opmath(dtype)
    outer = a.astype(wide)[:, None] * b.astype(wide)[None, :]
    shape = jnp.broadcast_shapes(self.shape, outer.shape)
    return jnp.broadcast_to(add_scaled(self, outer, beta, alpha).astype(dtype), shape)


@lower("aten::ger", "aten::outer")
def _outer(a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = dtypes.storage_numpy_dtype(result_type(a, b))
    return a.astype(dtype)[:, None] * b.astype(dtype)[None, :]


def _multiply_rows(a: jax.Array, b: jax.Array, ends: jax.Array, dtype: np.dtype) -> jax.Array:
    """Multiply each group of rows of ``a`` (m, k) with its matrix of ``b`` (g, k, n).

    XLA for CPUs expands ragged_dot to products of every row and matrix, multiplied by 0 for other groups: a NaN or an
    infinity in one matrix would become a NaN in every group.
    """

    def ragged(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
        sizes = jnp.diff(ends, prepend=0).astype(np.int32)
        return lax.ragged_dot(a, b, sizes, precision=precision_for(a.dtype), preferred_element_type=dtype)

    def selected(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
        def add_group(out: jax.Array, group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return jnp.where(group[1][:, None], matmul_rule(_MATRIX)(a, group[0], dtype), out), None

        zeros = jnp.zeros((a.shape[0], b.shape[2]), dtype)
        return lax.scan(add_group, zeros, (b, _group_masks(ends, a.shape[0])))[0]

    return lax.platform_dependent(a, b, ends, cpu=selected, default=ragged)


def _group_masks(ends: jax.Array, count: int) -> jax.Array:
    """Return for each group (g) which of ``count`` places (g, count) it contains."""
    place, starts = lax.iota(np.int32, count), jnp.concatenate([jnp.zeros_like(ends, shape=1), ends[:-1]])
    return (place >= starts[:, None]) & (place < ends[:, None])


def grouped_product(a: jax.Array, b: jax.Array, ends: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """Multiply by groups that end at ``ends``: groups of rows of a, of columns of b, or of the contracted dimension.

    Matrices without ``ends`` are multiplied in pairs. ``dtype`` is that of the result, not narrower than that of ``a``.
    """
    if ends is None:
        return matmul_rule(_BATCH)(a, b, dtype)
    if a.ndim == 2 and b.ndim == 3:
        return _multiply_rows(a, b, ends, dtype)
    if b.ndim == 2 and a.ndim == 3:
        return _multiply_rows(b.T, a.swapaxes(1, 2), ends, dtype).T

    def multiply_group(mask: jax.Array) -> jax.Array:
        left, right = (jnp.where(m, x, jnp.zeros((), x.dtype)) for m, x in ((mask, a), (mask[:, None], b)))
        return matmul_rule(_MATRIX)(left, right, dtype)

    return lax.map(multiply_group, _group_masks(ends, a.shape[1]))


@lower("aten::_grouped_mm", ctx=True)
def _grouped_mm(
    ctx: LoweringRuleContext,
    a: jax.Array,
    b: jax.Array,
    ends: jax.Array | None = None,
    bias: Any = None,
    dtype: Any = None,
) -> jax.Array:
    return grouped_product(a, b, ends, jnp.promote_types(a.dtype, ctx.dtype)).astype(ctx.dtype)
