"""Lowering rules of collectives among replicas.

Each rule runs inside a shard_map over the axis ``AXIS`` of all participating replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import opmath
from torch_xla._engine.lowering.registry import Operand, ScalarOperand, lower

AXIS = "replica"

COLLECTIVES = frozenset(
    f"torch_xla::{name}"
    for name in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "ragged_all_to_all",
        "collective_permute",
        "collective_broadcast",
    )
)

Groups = list[list[int]] | None


def split_groups(flat: Sequence[int]) -> list[list[int]]:
    """Split a list of ordinals into groups at the separator -1; an empty list has no groups."""
    groups: list[list[int]] = [[]]
    for ordinal in flat:
        if ordinal < 0:
            groups.append([])
        else:
            groups[-1].append(ordinal)
    return [group for group in groups if group]


def _positions(flat: Sequence[int]) -> Groups:
    """Convert groups of ordinals to positions on the axis, of exactly these ordinals; None for one ordered group."""
    groups = split_groups(flat)
    members = sorted(ordinal for group in groups for ordinal in group)
    place = {ordinal: position for position, ordinal in enumerate(members)}
    if not groups or groups == [members]:
        return None
    return [[place[ordinal] for ordinal in group] for group in groups]


def _make_empty(x: jax.Array, sizes: dict[int, int]) -> jax.Array:
    """Return an array of x's shape with other sizes of some dimensions, and no elements.

    XLA rejects an empty operand of collectives that move elements between dimensions.
    """
    shape = tuple(sizes.get(dim, size) for dim, size in enumerate(x.shape))
    return jnp.zeros(shape, x.dtype)


def _gather_over_groups(x: jax.Array, groups: Groups) -> jax.Array:
    return lax.all_gather(x, AXIS, axis_index_groups=groups)


def _exchangeable(x: jax.Array) -> jax.Array:
    # Not every transport supports bool.
    return x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x


def _product(x: jax.Array, groups: Groups) -> jax.Array:
    return jnp.prod(_gather_over_groups(x, groups), axis=0, dtype=x.dtype)


def _sum(x: jax.Array, groups: Groups) -> jax.Array:
    return lax.psum(x, AXIS, axis_index_groups=groups)


def _min_max(x: jax.Array, groups: Groups, largest: bool) -> jax.Array:
    reduce: Callable[..., jax.Array] = lax.pmax if largest else lax.pmin
    return reduce(x, AXIS, axis_index_groups=groups)


def _bits(x: jax.Array, groups: Groups, union: bool) -> jax.Array:
    parts = _gather_over_groups(x, groups)
    zero = np.zeros((), parts.dtype)
    return lax.reduce(parts, zero if union else ~zero, lax.bitwise_or if union else lax.bitwise_and, (0,))


_REDUCTIONS: dict[str, Callable[[jax.Array, Groups], jax.Array]] = {
    "sum": _sum,
    "mul": _product,
    "min": lambda x, groups: _min_max(x, groups, False),
    "max": lambda x, groups: _min_max(x, groups, True),
    "and": lambda x, groups: _bits(x, groups, False),
    "or": lambda x, groups: _bits(x, groups, True),
}


def _reduce_over_groups(x: jax.Array, op: str, groups: Groups) -> jax.Array:
    if not x.size:
        return x
    if x.dtype == jnp.bool_ and op in ("sum", "mul"):
        op = "or" if op == "sum" else "and"
    return _REDUCTIONS[op](_exchangeable(x), groups).astype(x.dtype)


@lower("torch_xla::all_reduce")
def _all_reduce(inputs: Sequence[jax.Array], op: str, scale: Operand, groups: Sequence[int]) -> list[jax.Array]:
    return [_scale(_reduce_over_groups(x, op, _positions(groups)), scale) for x in inputs]


def _scale(x: jax.Array, scale: Operand) -> jax.Array:
    if not isinstance(scale, ScalarOperand) and scale == 1:
        return x
    factor = scale.value if isinstance(scale, ScalarOperand) else jnp.asarray(scale)
    wide = opmath(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else np.dtype(np.float64)
    return (x.astype(wide) * factor.astype(wide)).astype(x.dtype)


@lower("torch_xla::all_gather")
def _all_gather(x: jax.Array, dim: int, shards: int, groups: Sequence[int]) -> jax.Array:
    if not x.size:
        return _make_empty(x, {dim: x.shape[dim] * shards})
    gathered = lax.all_gather(_exchangeable(x), AXIS, axis=dim, axis_index_groups=_positions(groups), tiled=True)
    return gathered.astype(x.dtype)


@lower("torch_xla::reduce_scatter")
def _reduce_scatter(x: jax.Array, op: str, dim: int, shards: int, groups: Sequence[int]) -> jax.Array:
    where, size = _positions(groups), x.shape[dim] // shards
    if not x.size:
        return _make_empty(x, {dim: size})
    if op == "sum" and x.dtype != jnp.bool_:
        return lax.psum_scatter(x, AXIS, scatter_dimension=dim, axis_index_groups=where, tiled=True)
    return lax.dynamic_slice_in_dim(_reduce_over_groups(x, op, where), _place_in_group(where) * size, size, dim)


def _place_in_group(groups: Groups) -> jax.Array:
    """Return this replica's rank in its group."""
    index = lax.axis_index(AXIS)
    if groups is None:
        return index
    places = {position: place for group in groups for place, position in enumerate(group)}
    return jnp.asarray([places[position] for position in sorted(places)])[index]


@lower("torch_xla::all_to_all")
def _all_to_all(x: jax.Array, split: int, concat: int, shards: int, groups: Sequence[int]) -> jax.Array:
    if not x.size:
        sizes = {split: x.shape[split] // shards}
        return _make_empty(x, sizes | {concat: sizes.get(concat, x.shape[concat]) * shards})
    parts = lax.all_to_all(_exchangeable(x), AXIS, split, concat, axis_index_groups=_positions(groups), tiled=True)
    return parts.astype(x.dtype)


@lower("torch_xla::ragged_all_to_all")
def _ragged_all_to_all(
    x: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    groups: Sequence[int],
) -> jax.Array:
    """Send slices of rows to the replicas of the group, which put them at ``output_offsets`` into their outputs."""
    where = _positions(groups)
    sizes = [s.astype(np.int32) for s in (input_offsets, send_sizes, output_offsets, recv_sizes)]

    def exchanged(x: jax.Array, output: jax.Array, *sizes: jax.Array) -> jax.Array:
        return lax.ragged_all_to_all(x, output, *sizes, axis_name=AXIS, axis_index_groups=where)

    def gathered(x: jax.Array, output: jax.Array, *sizes: jax.Array) -> jax.Array:
        return _gathered_slices(x, output, list(sizes[:3]), where)

    arrays = _exchangeable(x), _exchangeable(output)
    # XLA has no ragged-all-to-all on the CPU
    result: jax.Array = lax.platform_dependent(*arrays, *sizes, cpu=gathered, default=exchanged)
    return result.astype(output.dtype)


def _gathered_slices(x: jax.Array, output: jax.Array, slices: Sequence[jax.Array], groups: Groups) -> jax.Array:
    """Gather all rows of the group, and select those that are sent to this replica."""
    mine = _place_in_group(groups)
    start, size, target = (_gather_over_groups(part, groups)[:, mine] for part in slices)
    if not x.size or not output.size:
        return output
    row = lax.iota(np.int32, output.shape[0])[None]
    is_from = (row >= target[:, None]) & (row < (target + size)[:, None])  # [sender, row]
    sender = jnp.argmax(is_from, 0)
    source = jnp.clip(row[0] - target[sender] + start[sender], 0, x.shape[0] - 1)
    received = _gather_over_groups(x, groups)[sender, source]
    is_received = is_from.any(0).reshape(-1, *[1] * (output.ndim - 1))
    return jnp.where(is_received, received, output)


@lower("torch_xla::collective_permute")
def _collective_permute(x: jax.Array, pairs: Sequence[int], groups: Sequence[int]) -> jax.Array:
    place = {ordinal: position for position, ordinal in enumerate(sorted(g for g in groups if g >= 0))}
    moves = [(place.get(a, a), place.get(b, b)) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    return lax.ppermute(_exchangeable(x), AXIS, moves).astype(x.dtype)


@lower("torch_xla::collective_broadcast")
def _collective_broadcast(inputs: Sequence[jax.Array], root: int, groups: Sequence[int]) -> list[jax.Array]:
    where = _positions(groups)
    is_root = _place_in_group(where) == root
    return [_from_root(x, is_root, where) for x in inputs]


def _from_root(x: jax.Array, is_root: jax.Array, groups: Groups) -> jax.Array:
    """Broadcast the root's bits: an integer sum in which the other terms are zero, which preserves -0.0 and NaN."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(_from_root(x.real, is_root, groups), _from_root(x.imag, is_root, groups))
    if x.dtype == jnp.bool_:
        return _from_root(x.astype(jnp.uint32), is_root, groups).astype(jnp.bool_)
    plain = np.dtype(f"uint{x.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(x, plain)
    wide = bits.astype(jnp.uint32) if x.dtype.itemsize < 4 else bits
    total = lax.psum(jnp.where(is_root, wide, 0), AXIS, axis_index_groups=groups)
    return lax.bitcast_convert_type(total.astype(plain), x.dtype)


def opaque_to_compiler(value: jax.Array | list[jax.Array], earlier: jax.Array | None) -> jax.Array | list[jax.Array]:
    """Return the operand of a collective unchanged, but opaque to the compiler and ordered after ``earlier``.

    XLA assumes that all replicas run the same program, but programs may differ outside of collectives, such as in a
    constant that is 0 in one replica and 1 in another. XLA would fold the sum of a constant, and could order the
    collectives of each replica differently. Therefore the value becomes one that the compiler cannot evaluate, and
    cannot compute before ``earlier``, the result of the previous collective. (XLA drops optimization barriers before
    it schedules.)
    """
    if isinstance(value, list):
        return [_opaque_value(x, earlier) for x in value]
    return _opaque_value(value, earlier)


def _opaque_value(value: jax.Array, earlier: jax.Array | None) -> jax.Array:
    index = lax.axis_index(AXIS)
    other = index.astype(value.dtype)
    if earlier is not None:
        some = lax.slice_in_dim(earlier.ravel(), 0, min(1, earlier.size))
        other = jnp.where(jnp.any(some != 0), other, jnp.zeros_like(other))
    # Never true: there are fewer replicas.
    return jnp.where(index > 1 << 30, other, value)
