"""The registry of lowering rules: ATen operator name -> function that computes the operator with jax.

A rule is called once per compilation, inside a trace with 64-bit types enabled. It takes all arguments of the
operator's schema, by position:

    Tensor, Tensor?       jax array, or None
    Tensor[], Tensor?[]   list of arrays, or of arrays and Nones
    Scalar                ScalarOperand, or a Python number
    int[], float, bool, str, ...                    the Python value
    ScalarType?           torch.dtype, or None
    Layout?, Device?, MemoryFormat?, Generator?     unspecified; rules ignore them

A Python number in a Tensor position (``x + 0.1``) is passed as a ScalarOperand too. Its value is an input of the
program, so that a changing learning rate compiles once. The values 0, 1 and -1 are passed as Python numbers, and so are
the Scalar arguments named in ``static_args=`` (exponents, sizes: values that change the program).

A rule returns an array, or a tuple in the order of the schema's returns (a list for ``Tensor[]``). The caller checks
shapes and dtypes against the output specs that torch declared. A rule registered with ``ctx=True`` takes a
LoweringRuleContext as its first argument; the context has the output specs, and the PRNG key of a rule registered with
``random=True``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering import threefry


@dataclass(frozen=True, slots=True)
class ScalarOperand:
    """A Python number that is an input of the program: a 0-d array ``value``, and its Python type."""

    value: jax.Array
    kind: type  # bool, int, float or complex

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the number if no tensor determines it (torch's default dtype for floats)."""
        return scalar_dtype(self.kind)


#: Shape and dtype of one result, as torch declared them when the op was recorded; dtype None marks an undefined result.
TensorSpec = tuple[tuple[int, ...], torch.dtype | None]

Operand = jax.Array | ScalarOperand | bool | int | float | complex


@dataclass(slots=True)
class LoweringRuleContext:
    """Output specs and PRNG key for one call of a rule."""

    op: str
    out_specs: Sequence[TensorSpec]  # one per result, with lists flattened
    seed: jax.Array | None = None  # uint32[2] key data for random rules, unique to this draw

    @property
    def shape(self) -> tuple[int, ...]:
        return self.out_specs[0][0]

    @property
    def torch_dtype(self) -> torch.dtype:
        return self.dtype_of(0)

    def dtype_of(self, i: int) -> torch.dtype:
        """Return the torch dtype of result ``i``."""
        dtype = self.out_specs[i][1]
        assert dtype is not None, f"{self.op}: result {i} is undefined"
        return dtype

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype of the first result."""
        return dtypes.storage_numpy_dtype(self.torch_dtype)

    def key(self) -> jax.Array:
        """Return the PRNG key of this call, unique among the random ops of a program. Call it once, then split."""
        assert self.seed is not None, f"{self.op} requests a PRNG key but is not registered with random=True"
        return threefry.wrap_key_data(self.seed)

    def jax_key(self) -> jax.Array:
        """Return the same key for functions of jax that require, or treat differently, a key of jax's own type."""
        return jax.random.wrap_key_data(jax.random.key_data(self.key()), impl="threefry2x32")


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator overload is lowered, and the properties of it that the recorder reads.

    Attributes:
      name: qualified name, e.g. ``aten::add.Tensor``.
      function: computes the operator with jax.
      ctx: whether ``function`` takes a LoweringRuleContext first.
      random: whether the rule draws random numbers.
      static_args: names of Scalar arguments whose values are compile-time constants.
      elementwise_random: whether each element of a result of a random rule depends only on its row-major position, on
        the key, and on the operand elements at that position. Such an element is the same in a longer result.
    """

    name: str
    function: Callable[..., Any]
    ctx: bool = False
    random: bool = False
    static_args: frozenset[str] = field(default_factory=frozenset)
    elementwise_random: bool = False


RULES: dict[str, Rule] = {}


def register(
    name: str, function: Callable[..., Any], *, ctx: bool = False, random: bool = False,
    static_args: tuple[str, ...] = (), elementwise_random: bool = False,
) -> None:  # fmt: skip
    """Register the rule of an overload, e.g. ``"aten::add.Tensor"``. Raises ValueError if it has one."""
    if name in RULES:
        raise ValueError(f"{name}: a lowering rule is already registered")
    RULES[name] = Rule(name, function, ctx or random, random, frozenset(static_args), elementwise_random)


def lower(
    *names: str,
    ctx: bool = False,
    random: bool = False,
    static_args: tuple[str, ...] = (),
    elementwise_random: bool = False,
) -> Callable[..., Any]:
    """Register the decorated function for one or several overloads: ``@lower("aten::relu")``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            register(
                name, function, ctx=ctx, random=random, static_args=static_args, elementwise_random=elementwise_random
            )
        return function

    return decorate


_default_dtype: ContextVar[torch.dtype | None] = ContextVar("default_dtype", default=None)


def default_dtype() -> torch.dtype:
    """Return torch's default dtype at the time the op being lowered was recorded."""
    return _default_dtype.get() or torch.get_default_dtype()


@contextmanager
def default_dtype_scope(dtype: torch.dtype) -> Iterator[None]:
    """Set ``default_dtype()`` to ``dtype`` on this thread within the block."""
    token = _default_dtype.set(dtype)
    try:
        yield
    finally:
        _default_dtype.reset(token)


def scalar_dtype(kind: type) -> torch.dtype:
    """Return the dtype of a Python number of type ``kind`` that no tensor determines."""
    if kind is bool:
        return torch.bool
    if kind is int:
        return torch.int64
    default = default_dtype()
    if kind is float:
        return default
    return torch.complex128 if default == torch.float64 else torch.complex64


def result_type(*operands: Operand) -> torch.dtype:
    """Return torch's promoted dtype of the operands, ranked as tensors with dimensions, 0-d tensors, numbers."""
    dims: list[torch.dtype] = []
    zeros: list[torch.dtype] = []
    wrapped: list[torch.dtype] = []
    for x in operands:
        if isinstance(x, ScalarOperand):
            wrapped.append(x.dtype)
        elif isinstance(x, (bool, int, float, complex)):
            wrapped.append(scalar_dtype(type(x)))
        else:
            (dims if x.ndim else zeros).append(dtypes.torch_dtype_of_storage(x.dtype))
    return dtypes.promote(dims, zeros, wrapped)
