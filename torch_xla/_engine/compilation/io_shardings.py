"""The edges of a program over a mesh (SPMD): how its leaves come, how its results leave, and what they are inside.

Inside a tensor has the shape that the user sees. An array on the devices may be longer, where a dimension does not
divide (sharding_ids.py): a leaf is cut to its tensor's shape before anything reads it, a result is filled up at the end.
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
    """How (floats, ints, *leaves) lie; what has no sharding (numbers) as ``place``, or it would run on one device."""
    return tuple(spmd.normalize_sharding(a.sharding) if a.sharding is not None else place for a in arguments)


def output_shardings(
    spec: graph_spec.GraphSpec, leaves: Sequence[Any], place: Sharding, chosen: bool = True
) -> list[Sharding | None]:
    """How each root is to lie; None: as XLA likes, with ``chosen=False`` as ``place``.

    XLA splits no result unevenly by itself. So a root that nobody laid out (a gradient, say) lies like a leaf of its
    shape that is split unevenly, where there is one.
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
    """The function of tensors as one of arrays on the devices."""
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
