"""The registry of lowering rules: aten operator name -> a function that builds it from jax.

A rule is called once per compilation, inside a trace with 64-bit types on. Its arguments are the operator's schema
arguments, all of them, by position:

    Tensor            jax array                       Tensor?      jax array or None
    Tensor[]          list of arrays                  Tensor?[]    list of arrays and Nones
    Scalar            Number, or a Python number      int[], float, bool, str, ...   the Python value
    ScalarType?       torch.dtype or None             Layout?, Device?, MemoryFormat?, Generator?  whatever; ignore them

A Python number that met a tensor (``x + 0.1``) arrives in a Tensor position as a Number too: its value is an input of
the program, so that a changing learning rate compiles once. 0, 1 and -1 arrive as Python numbers, and so do the Scalar
arguments named in ``bake=`` (exponents, sizes: what changes the program).

A rule returns an array, or a tuple in the order of the schema's returns (a list for ``Tensor[]``). The shape and the
dtype that torch promises are checked by the caller; a rule declared with ``ctx=True`` gets a Context as its first
argument, which knows them, and which makes the PRNG key of a rule declared with ``random=True``.
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


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number that is an input of the program: a 0-d array ``value`` and the Python type it had."""

    value: jax.Array
    kind: type  # bool, int, float or complex

    @property
    def dtype(self) -> torch.dtype:
        """The dtype torch gives such a number where no tensor decides (the default dtype for floats)."""
        return scalar_dtype(self.kind)


#: Shape and dtype of one result, as torch promised when the op was recorded; dtype None: there is no such result.
Promise = tuple[tuple[int, ...], torch.dtype | None]

Operand = jax.Array | Number | bool | int | float | complex


@dataclass(slots=True)
class LoweringRuleContext:
    """What a rule may ask besides its arguments. Lives for one call of one rule."""

    op: str
    outs: Sequence[Promise]  # of each result, lists flattened
    seed: jax.Array | None = None  # uint32[2] key data, for random rules; of this draw alone

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outs[0][0]

    @property
    def torch_dtype(self) -> torch.dtype:
        return self.dtype_of(0)

    def dtype_of(self, i: int) -> torch.dtype:
        """The torch dtype of result ``i``."""
        dtype = self.outs[i][1]
        assert dtype is not None, f"{self.op}: nobody asked for result {i}"
        return dtype

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype of the first result."""
        return dtypes.storage_numpy_dtype(self.torch_dtype)

    def key(self) -> jax.Array:
        """The PRNG key of this call; different for every random op of a program. Ask once, and split."""
        assert self.seed is not None, f"{self.op} asks for a key but is not registered with random=True"
        return jax.random.wrap_key_data(self.seed, impl="threefry2x32")


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator overload is lowered, and what the recorder must know about it.

    ``each``, of a random rule: an element of a result depends on its place in row-major order, on the key, and on the
    elements of the operands in that place, and on nothing else; so it is the same in a longer result.
    """

    name: str
    function: Callable[..., Any]
    ctx: bool = False
    random: bool = False
    bake: frozenset[str] = field(default_factory=frozenset)
    each: bool = False


RULES: dict[str, Rule] = {}


def register(
    name: str, function: Callable[..., Any], *, ctx: bool = False, random: bool = False, bake: tuple[str, ...] = (),
    each: bool = False,
) -> None:  # fmt: skip
    """Adds the rule for ``name``, e.g. ``"aten::add.Tensor"``. Raises ValueError if it has one already."""
    if name in RULES:
        raise ValueError(f"{name}: a lowering rule is registered twice")
    RULES[name] = Rule(name, function, ctx or random, random, frozenset(bake), each)


def lower(
    *names: str, ctx: bool = False, random: bool = False, bake: tuple[str, ...] = (), each: bool = False
) -> Callable[..., Any]:
    """Decorator form of register, for one or several overloads: ``@lower("aten::relu")``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            register(name, function, ctx=ctx, random=random, bake=bake, each=each)
        return function

    return decorate


_default_dtype: ContextVar[torch.dtype | None] = ContextVar("default_dtype", default=None)


def default_dtype() -> torch.dtype:
    """torch's default dtype as it was when what is being lowered was recorded."""
    return _default_dtype.get() or torch.get_default_dtype()


@contextmanager
def default_dtype_scope(dtype: torch.dtype) -> Iterator[None]:
    """In this block, on this thread, default_dtype is ``dtype``."""
    token = _default_dtype.set(dtype)
    try:
        yield
    finally:
        _default_dtype.reset(token)


def scalar_dtype(kind: type) -> torch.dtype:
    """The dtype of a Python number of type ``kind`` on its own."""
    if kind is bool:
        return torch.bool
    if kind is int:
        return torch.int64
    default = default_dtype()
    if kind is float:
        return default
    return torch.complex128 if default == torch.float64 else torch.complex64


def result_type(*operands: Operand) -> torch.dtype:
    """torch's promoted dtype of the operands: tensors with dimensions, then 0-d tensors, then numbers."""
    dims: list[torch.dtype] = []
    zeros: list[torch.dtype] = []
    wrapped: list[torch.dtype] = []
    for x in operands:
        if isinstance(x, Number):
            wrapped.append(x.dtype)
        elif isinstance(x, (bool, int, float, complex)):
            wrapped.append(scalar_dtype(type(x)))
        else:
            (dims if x.ndim else zeros).append(dtypes.torch_dtype_of_storage(x.dtype))
    return dtypes.promote(dims, zeros, wrapped)
