"""Devices that hold no values: a script runs on them without anything being computed or allocated.

A buffer is an AbstractArray: a shape, a dtype, a sharding. What is read of one is zeros. Switched on before the first
use of a device, for the rest of the process; see torch_xla.aot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Sharding

#: Of a graph (a GraphSpec), how its results lie on the devices of this process; None where nobody knows.
Chooser = Callable[[Any], Sequence[Sharding] | None]

_on = False
_chooser: Chooser = lambda spec: None


def enable(chooser: Chooser | None = None) -> None:
    """From now on no device of this process holds values.

    ``chooser`` says how results of SPMD lie that nobody has laid out: it asks the compiler of another machine.
    """
    global _on, _chooser
    _on, _chooser = True, chooser or _chooser


def is_enabled() -> bool:
    """Whether devices hold no values."""
    return _on


def query_result_shardings(spec: Any) -> Sequence[Sharding] | None:
    """How the results of a graph lie, if somebody else compiles it and says so."""
    return _chooser(spec)


class AbstractArray:
    """In the place of a ``jax.Array``, with as much of its interface as the engine uses."""

    __slots__ = ("__weakref__", "dtype", "shape", "sharding")

    def __init__(self, shape: Sequence[int], dtype: Any, sharding: Sharding) -> None:
        self.shape, self.dtype, self.sharding = tuple(shape), np.dtype(dtype), sharding

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    @property
    def is_fully_replicated(self) -> bool:
        return self.sharding.is_fully_replicated

    is_fully_addressable = True

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        """Nothing is awaited."""
        return True

    def block_until_ready(self) -> AbstractArray:
        return self

    def with_sharding(self, sharding: Sharding) -> AbstractArray:
        """The same, lying otherwise."""
        return AbstractArray(self.shape, self.dtype, sharding)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.zeros(self.shape, dtype or self.dtype)
