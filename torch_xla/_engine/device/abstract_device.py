"""Abstract devices (shape and dtype only): scripts run on them without computation or allocation.

A buffer is an AbstractArray with shape, dtype and sharding. Reads return zeros. Must be enabled before the first use of
a device, for the rest of the process; see torch_xla.aot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Sharding

#: Maps a GraphSpec to the shardings of its results; None if they are unknown.
Chooser = Callable[[Any], Sequence[Sharding] | None]

_on = False
_chooser: Chooser = lambda spec: None


def enable(chooser: Chooser | None = None) -> None:
    """Make all devices of this process abstract.

    ``chooser`` returns the shardings of unannotated SPMD results, as chosen by the compiler of the target.
    """
    global _on, _chooser
    _on, _chooser = True, chooser or _chooser


def is_enabled() -> bool:
    """Whether devices are abstract."""
    return _on


def query_result_shardings(spec: Any) -> Sequence[Sharding] | None:
    """Return the shardings of a graph's results if a target compiler chooses them, else None."""
    return _chooser(spec)


class AbstractArray:
    """Substitute for a ``jax.Array`` with the part of its interface that the engine uses."""

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
        """Always True: there is no pending computation."""
        return True

    def block_until_ready(self) -> AbstractArray:
        return self

    def with_sharding(self, sharding: Sharding) -> AbstractArray:
        """Return the same array with another sharding."""
        return AbstractArray(self.shape, self.dtype, sharding)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.zeros(self.shape, dtype or self.dtype)
