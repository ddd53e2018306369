"""A program that takes and returns many small arrays in buckets: one array for each dtype, with one after the other.

Starting a program costs the host time for each array that it takes or returns. A captured step of a small model
takes and returns hundreds: parameters, optimizer state, gradients. Between two calls only the step has them, so it can
leave them in buckets; the recorder (csrc/runtime/bucket.h) makes arrays of those that something else reads.

The graph is lowered as it is, between two CPU kernels that copy bytes, so that it computes the same bits.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine import recorder
from torch_xla._engine.compat import pjrt_execution
from torch_xla._engine.compilation import graph_function, native_executable
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import graph_key
from torch_xla._engine.compilation.placement import SingleDevicePlacement
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.lowering.cpu_kernel_call import cpu_kernel_call_in_place

#: The largest array in a bucket, in bytes: copying a larger one to and from a bucket takes longer than passing it.
MOST_BYTES = 1 << 14
#: The fewest arrays that are worth a second program, and the fewest in a bucket.
LEAST_ARRAYS, LEAST_IN_BUCKET = 32, 4
#: The largest total of all results of a program with buckets, in bytes. Larger models compute for longer than a launch
#: takes, and take long to compile twice.
MOST_RESULT_BYTES = 1 << 26
#: Results of one call that splits a bucket: the compile time per element of a tuple is proportional to its length.
_MOST_SPLIT = 256

Struct = jax.ShapeDtypeStruct


@dataclass
class BucketGroup:
    """The arrays of one bucket by slot. ``sources``: the inputs that the targets overwrite; empty for results only."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    arrays: list[Struct] = field(default_factory=list)

    @property
    def struct(self) -> Struct:
        """The array of the bucket."""
        return Struct((sum(int(np.prod(each.shape)) for each in self.arrays),), self.arrays[0].dtype)


@dataclass
class BucketedProgram:
    """What the recorder's ReplayProgram.use_buckets takes."""

    executable: Any
    groups: list[tuple[list[int], list[int], Callable[..., Any], Callable[..., Any]]]


def group_arrays(program: CompiledProgram, candidates: Sequence[tuple[int | None, int]]) -> list[BucketGroup]:
    """Return the buckets of a program; none if they are not worth compiling it a second time.

    Args:
      program: the program without buckets.
      candidates: (the input that the result overwrites or None, result) of each value that may be in a bucket.

    | a program                                        | buckets                                  |
    | ------------------------------------------------ | ---------------------------------------- |
    | of several devices, or not of the CPU of jaxlib  | none                                     |
    | with Python callbacks, which may read the values | none                                     |
    | whose results are larger than MOST_RESULT_BYTES  | none                                     |
    | without the CPU kernels                          | none                                     |
    | with fewer than LEAST_ARRAYS arrays in buckets   | none                                     |
    | any other: arrays of up to MOST_BYTES            | per dtype: overwritten inputs, gradients |
    """
    if program.compiled is None or type(program.placement) is not SingleDevicePlacement:
        return []
    if pjrt_execution.has_python_callbacks(program.compiled):
        return []
    if program.placement.input_placer() is not None or sum(program.sizes.results) > MOST_RESULT_BYTES:
        return []
    with library.kernels_enabled(program.placement.device) as (handlers, _):
        if handlers is None:
            return []
    infos = jax.tree.leaves(program.compiled.out_info)
    found: dict[tuple[np.dtype[Any], bool], BucketGroup] = defaultdict(BucketGroup)
    for source, target in candidates:
        info = infos[target]
        if 0 < info.size * info.dtype.itemsize <= MOST_BYTES:
            group = found[info.dtype, source is None]
            group.sources += [] if source is None else [source]
            group.targets.append(target)
            group.arrays.append(Struct(info.shape, info.dtype))
    groups = [group for group in found.values() if len(group.targets) >= LEAST_IN_BUCKET]
    count = sum(len(group.sources) + len(group.targets) for group in groups)
    return groups if count >= LEAST_ARRAYS else []


def compile_with_buckets(
    spec: GraphSpec, program: CompiledProgram, leaves: Sequence[Any], groups: Sequence[BucketGroup]
) -> BucketedProgram:
    """Compile a graph as a program with buckets, or load it from the persistent cache.

    Args:
      spec: the graph.
      program: its program without buckets.
      leaves: the inputs of the graph, as arrays or ShapeDtypeStructs.
      groups: the buckets, as ``group_arrays`` returns them; at least one.

    Raises:
      RuntimeError: XLA's compiler failed.
    """
    place, reads = program.placement, [group for group in groups if group.sources]
    single = {i for group in reads for i in group.sources}
    written = {i for group in groups for i in group.targets}
    others = [i for i in range(len(leaves)) if i not in single]
    roots = [i for i in range(len(spec.roots)) if i not in written]
    function = graph_function.graph_function(spec, place.is_checked)

    def with_buckets(floats: jax.Array, ints: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
        values: dict[int, jax.Array] = dict(zip(others, arrays, strict=False))
        for group, bucket in zip(reads, arrays[len(others) :], strict=True):
            values |= zip(group.sources, split_bucket(bucket, group.arrays), strict=True)
        results = function(floats, ints, *(values[i] for i in range(len(leaves))))
        buckets = [fill_bucket([results[i] for i in group.targets]) for group in groups]
        return [*(results[i] for i in roots), *buckets, *results[len(spec.roots) :]]

    on_device = functools.partial(Struct, sharding=place.sharding)
    numbers = [on_device((spec.floats,), np.float64), on_device((spec.ints,), np.int64)]
    inputs = [*numbers, *(leaves[i] for i in others), *(on_device(g.struct.shape, g.struct.dtype) for g in reads)]
    donated = [2 + n for n, i in enumerate(others) if i in set(spec.donated)]
    donated += range(2 + len(others), len(inputs))
    name = None
    if place.has_graph_key and place.device is not None:
        graph = graph_key.graph_cache_key(spec, leaves, place.device, donates=True, checked=place.is_checked)
        name = graph_key.variant_key(graph, [(group.sources, group.targets) for group in groups])
    compiled = _compile(with_buckets, inputs, program, donated, name)
    executable, _ = native_executable.make_executable(compiled, place.sharding, len(roots) + len(groups))
    return BucketedProgram(executable, [_group_functions(group, program) for group in groups])


def split_bucket(bucket: jax.Array, arrays: Sequence[Any]) -> list[jax.Array]:
    """Return the arrays of a bucket, of the given shapes."""
    offsets = np.cumsum([0] + [int(np.prod(each.shape)) for each in arrays])
    found: list[jax.Array] = []
    for first in range(0, len(arrays), _MOST_SPLIT):
        outs = arrays[first : first + _MOST_SPLIT]
        default = functools.partial(_slices, offset=int(offsets[first]), shapes=tuple(each.shape for each in outs))
        start = int(offsets[first]) * bucket.dtype.itemsize
        found += cpu_kernel_call_in_place("split_bucket", default, [bucket], outs, {}, first=start)
    return found


def _slices(bucket: jax.Array, offset: int, shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    found = []
    for shape in shapes:
        size = int(np.prod(shape))
        found.append(lax.slice(bucket, (offset,), (offset + size,)).reshape(shape))
        offset += size
    return found


def fill_bucket(arrays: Sequence[jax.Array]) -> jax.Array:
    """Return the bucket of arrays of one dtype."""
    size = sum(int(np.prod(each.shape)) for each in arrays)
    found: list[jax.Array] = cpu_kernel_call_in_place(
        "fill_bucket", _concatenate, arrays, [Struct((size,), arrays[0].dtype)], {}
    )
    return found[0]


def _concatenate(*arrays: jax.Array) -> list[jax.Array]:
    return [jnp.concatenate([each.ravel() for each in arrays])]


def _compile(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    program: CompiledProgram,
    donated: Sequence[int] = (),
    name: str | None = None,
) -> jax.stages.Compiled:
    place = program.placement
    with (
        recorder.enable_x64(),
        xla_errors.translate_xla_errors(
            lambda: f"compiling {program.outline} with buckets", place.ordinal, program.outline
        ),
        library.kernels_enabled(place.device) as (_, called),
    ):
        jitted = jax.jit(function, donate_argnums=tuple(donated), keep_unused=True)
        lower = functools.partial(jitted.lower, *inputs)
        return persistent_cache.load_or_compile(lower, place.program_devices, name, called)[0]


def _group_functions(
    group: BucketGroup, program: CompiledProgram
) -> tuple[list[int], list[int], Callable[..., Any], Callable[..., Any]]:
    """Return (sources, targets, list of arrays -> bucket, bucket -> list of arrays); the functions compile at first."""
    on_device = functools.partial(Struct, sharding=program.placement.sharding)

    @functools.cache
    def compiled_fill() -> Any:
        arrays = [on_device(each.shape, each.dtype) for each in group.arrays]
        return _compile(lambda *values: fill_bucket(values), arrays, program)

    @functools.cache
    def compiled_split() -> Any:
        bucket = on_device(group.struct.shape, group.struct.dtype)
        return _compile(lambda bucket: split_bucket(bucket, group.arrays), [bucket], program)

    def fill(arrays: list[jax.Array]) -> Any:
        with recorder.enable_x64():
            return compiled_fill()(*arrays)

    def split(bucket: jax.Array) -> list[Any]:
        with recorder.enable_x64():
            return list(compiled_split()(bucket))

    return group.sources, group.targets, fill, split
