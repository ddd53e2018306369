"""Input and output shardings of SPMD programs, and the padding of unevenly sharded tensors.

Inside a program a tensor has the shape that the user sees. An array on the devices may be longer if a dimension is not
divisible by its partition count (sharding_ids.py): inputs are unpadded before any op reads them, outputs are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import Sharding

from torch_xla._engine.base import sharding_ids
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.parallel import spmd


def input_shardings(arguments: Sequence[Any], place: Sharding) -> tuple[Sharding, ...]:
    """Return the shardings of (floats, ints, *leaves); scalars, which have none, get ``place``."""
    return tuple(spmd.normalize_sharding(a.sharding) if a.sharding is not None else place for a in arguments)


def output_shardings(
    spec: graph_spec.GraphSpec, leaves: Sequence[Any], place: Sharding, chosen: bool = True
) -> list[Sharding | None]:
    """Return the requested sharding of each root; None lets XLA choose. With ``chosen=False`` None becomes ``place``.

    XLA never chooses an uneven sharding. So an unannotated root (such as a gradient) gets the sharding of an unevenly
    sharded input of the same shape, if there is one.
    """
    uneven = {
        shape: spmd.normalize_sharding(leaf.sharding)
        for (shape, _), leaf in zip(spec.leaves, leaves, strict=True)
        if tuple(leaf.shape) != shape
    }
    free = None if chosen else place
    shapes = [tuple(spec.value_spec(root)[0]) if uneven else () for root in spec.roots]
    return [
        sharding_ids.sharding_from_id(number) or uneven.get(shape, free)
        for number, shape in zip(spec.root_shardings, shapes, strict=True)
    ]


def with_padded_io(
    function: Callable[..., list[jax.Array]], spec: graph_spec.GraphSpec, ways: Sequence[Sharding | None]
) -> Callable[..., list[jax.Array]]:
    """Wrap a function of unpadded tensors as a function of padded device arrays."""
    shapes = [shape for shape, _ in spec.leaves]

    def program_of_arrays(floats: jax.Array, ints: jax.Array, *leaves: jax.Array) -> list[jax.Array]:
        results = function(floats, ints, *map(_unpad, leaves, shapes))
        return [_pad(result, way) for result, way in zip(results, ways, strict=True)]

    return program_of_arrays


def _unpad(leaf: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return spmd.unpad(leaf, shape)  # type: ignore[no-any-return]


def _pad(result: jax.Array, way: Sharding | None) -> jax.Array:
    if way is None or sharding_ids.padded_shape(result.shape, way) == result.shape:
        return result
    return spmd.pad_to(lax.with_sharding_constraint(result, way), sharding_ids.padded_shape(result.shape, way))  # type: ignore[no-any-return]
