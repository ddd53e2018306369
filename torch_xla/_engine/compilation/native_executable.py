"""Wraps jaxlib's loaded executables so that the recorder launches them from C++, without running Python.

Calling a ``jax.stages.Compiled`` runs Python code, which an interrupt can stop after the program has taken over the
memory of its donated inputs and before the caller has its outputs. So the recorder (csrc/graph/launch.cpp) calls the
jaxlib executable directly. If this jax release does not expose it, or the program calls Python itself, the recorder
calls jax on a separate thread, a new one for each launch, which no interrupt reaches.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine import recorder
from torch_xla._engine.compat import pjrt_execution
from torch_xla._engine.graph import program_info
from torch_xla._engine.graph.program_info import ProgramSizes

_NUMBERS = (np.dtype(np.float64), np.dtype(np.int64))


def make_executable(
    compiled: jax.stages.Compiled,
    number_sharding: jax.sharding.Sharding,
    root_count: int,
    result_shardings: Sequence[int] = (),
    together: bool = False,
) -> tuple[Any, ProgramSizes]:
    """Return the recorder's Executable of a program that takes (floats, ints, *leaves), and the program's sizes.

    Args:
      root_count: the number of results that are values of the graph; the result of checks may follow.
      number_sharding: the sharding of the two arrays of scalars, on the program's devices.
      result_shardings: the sharding id of each output; empty for a program of one device.
      together: one launch runs the graphs of several replica threads (recorder.launch_joined).
    """
    sizes = program_info.program_sizes(compiled, root_count)
    execute, handlers = pjrt_execution.raw_execute(compiled)
    put = pjrt_execution.raw_device_put()
    direct = None not in (execute, put, pjrt_execution.x64_setter()[0])
    guard, allow = pjrt_execution.transfer_guard()
    counts = [int(aval.shape[0]) for aval in compiled.in_avals[0][:2]]
    avals = [jax.core.ShapedArray((n,), dtype) for n, dtype in zip(counts, _NUMBERS, strict=True)]
    executable = recorder.bindings().Executable(
        execute=execute if direct else None,
        handlers=handlers,
        call=None if direct else functools.partial(_call_through_jax, compiled, together),
        put=put if direct else None,
        options=pjrt_execution.wide_options() if direct else [],
        guard=guard,
        allow=allow,
        number_avals=avals,
        number_arrays=[
            None if n or not direct else _empty_scalars(number_sharding, dtype)
            for n, dtype in zip(counts, _NUMBERS, strict=True)
        ],
        number_sharding=number_sharding,
        number_devices=sorted(number_sharding.addressable_devices, key=operator.attrgetter("id")),
        sizes=sizes.results,
        extra=sizes.extra,
        shardings=list(result_shardings),
        tokens=direct and pjrt_execution.supports_completion_tokens(),
    )
    return executable, sizes


@functools.lru_cache(maxsize=64)
def _empty_scalars(sharding: jax.sharding.Sharding, dtype: np.dtype[Any]) -> jax.Array:
    """Return an empty array on the devices, the argument of a program without scalars."""
    with recorder.enable_x64():
        return jax.make_array_from_callback((0,), sharding, lambda index: np.zeros(0, dtype))


def _call_through_jax(compiled: jax.stages.Compiled, together: bool, arguments: list[Any]) -> Sequence[Any]:
    with recorder.enable_x64():
        results: Sequence[jax.Array] = compiled(*arguments)
    if not together:
        return results
    order = list(results[0].sharding.mesh.devices.flat) if results else []  # type: ignore[attr-defined]  # of a replica group
    shards_of = [{shard.device: shard.data for shard in result.addressable_shards} for result in results]
    return [[shards[device] for device in order] for shards in shards_of]
