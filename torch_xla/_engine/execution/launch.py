"""How a program is started: jaxlib's executable as the recorder calls it, with no Python in between.

jax's own way to call a compiled program goes through Python, where an interrupt could come after the program has taken
over the memory of what it replaces and before anybody has its results. So the recorder (csrc/launch.cpp) calls the
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
from torch_xla._engine.base.compat import launching
from torch_xla._engine.graph.program_info import ProgramSizes

_NUMBERS = (np.dtype(np.float64), np.dtype(np.int64))


def executable(
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
      together: one call of it serves several graphs of this process (recorder.launch_together).
    """
    execute, handlers = launching.executable(compiled)
    put = launching.put_array()
    direct = None not in (execute, put, launching.x64_switch()[0])
    guard, allow = launching.transfer_guard()
    counts = [int(aval.shape[0]) for aval in compiled.in_avals[0][:2]]
    avals = [jax.core.ShapedArray((n,), dtype) for n, dtype in zip(counts, _NUMBERS, strict=True)]
    return recorder.module().Executable(
        execute=execute if direct else None,
        handlers=handlers,
        call=None if direct else functools.partial(_call, compiled, together),
        put=put if direct else None,
        options=launching.wide_options() if direct else [],
        guard=guard,
        allow=allow,
        number_avals=avals,
        number_arrays=[
            None if n or not direct else _empty(number_sharding, dtype)
            for n, dtype in zip(counts, _NUMBERS, strict=True)
        ],
        number_sharding=number_sharding,
        number_devices=sorted(number_sharding.addressable_devices, key=operator.attrgetter("id")),
        sizes=sizes.results,
        extra=sizes.extra,
        shardings=list(result_shardings),
        tokens=direct and launching.has_tokens(),
    )


@functools.lru_cache(maxsize=64)
def _empty(sharding: jax.sharding.Sharding, dtype: np.dtype[Any]) -> jax.Array:
    """No numbers, on the devices: what a program without any takes."""
    with recorder.wide_types():
        return jax.make_array_from_callback((0,), sharding, lambda index: np.zeros(0, dtype))


def _call(compiled: jax.stages.Compiled, together: bool, arguments: list[Any]) -> Sequence[Any]:
    with recorder.wide_types():
        results: Sequence[jax.Array] = compiled(*arguments)
    if not together:
        return results
    order = list(results[0].sharding.mesh.devices.flat) if results else []  # type: ignore[attr-defined]  # of a team
    parts_of = [{part.device: part.data for part in result.addressable_shards} for result in results]
    return [[parts[device] for device in order] for parts in parts_of]
