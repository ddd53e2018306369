"""How a program is started: jaxlib's executable as the recorder calls it, with no Python in between.

jax's own way to call a compiled program goes through Python, where an interrupt could come after the program has taken
over the memory of what it replaces and before anybody has its results. So the recorder (csrc/graph/launch.cpp) calls the
executable behind it. Where this jax does not have what that takes, or the program calls Python itself, it calls jax
on a thread of its own, a new one for each launch, which nothing interrupts.
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
from torch_xla._engine.graph.program_info import ProgramSizes

_NUMBERS = (np.dtype(np.float64), np.dtype(np.int64))


def make_executable(
    compiled: jax.stages.Compiled,
    number_sharding: jax.sharding.Sharding,
    sizes: ProgramSizes,
    result_shardings: Sequence[int] = (),
    together: bool = False,
) -> Any:
    """The recorder's Executable of a program that takes (floats, ints, *leaves).

    Args:
      number_sharding: how the two arrays of numbers lie: on the program's devices.
      sizes: bytes of each result, and of what it needs while it runs.
      result_shardings: by number, how each result lies; empty for a program of one device.
      together: one call of it serves several graphs of this process (recorder.launch_joined).
    """
    execute, handlers = pjrt_execution.raw_execute(compiled)
    put = pjrt_execution.raw_device_put()
    direct = None not in (execute, put, pjrt_execution.x64_setter()[0])
    guard, allow = pjrt_execution.transfer_guard()
    counts = [int(aval.shape[0]) for aval in compiled.in_avals[0][:2]]
    avals = [jax.core.ShapedArray((n,), dtype) for n, dtype in zip(counts, _NUMBERS, strict=True)]
    return recorder.bindings().Executable(
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


@functools.lru_cache(maxsize=64)
def _empty_scalars(sharding: jax.sharding.Sharding, dtype: np.dtype[Any]) -> jax.Array:
    """No numbers, on the devices: what a program without any takes."""
    with recorder.enable_x64():
        return jax.make_array_from_callback((0,), sharding, lambda index: np.zeros(0, dtype))


def _call_through_jax(compiled: jax.stages.Compiled, together: bool, arguments: list[Any]) -> Sequence[Any]:
    with recorder.enable_x64():
        results: Sequence[jax.Array] = compiled(*arguments)
    if not together:
        return results
    order = list(results[0].sharding.mesh.devices.flat) if results else []  # type: ignore[attr-defined]  # of a team
    parts_of = [{part.device: part.data for part in result.addressable_shards} for result in results]
    return [[parts[device] for device in order] for parts in parts_of]
