"""Executables for abstract devices: a launch returns only shapes, dtypes and shardings, no values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Sharding

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes, sharding_ids
from torch_xla._engine.device.abstract_device import AbstractArray
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.graph.program_info import ProgramSizes

_Result = tuple[tuple[int, ...], np.dtype[Any], Sharding]


def make_abstract_executable(spec: GraphSpec, place: Sharding, shardings: Sequence[int]) -> tuple[Any, ProgramSizes]:
    """Return the recorder's Executable of a graph, and the sizes of its outputs.

    Args:
      spec: the graph.
      place: the sharding of the outputs without SPMD.
      shardings: with SPMD, the sharding id of each output.
    """
    numbers = shardings or [0] * len(spec.roots)
    results = [
        _result(spec, root, sharding_ids.sharding_from_id(n) or place)
        for root, n in zip(spec.roots, numbers, strict=True)
    ]
    sizes = ProgramSizes(
        [sharding_ids.bytes_per_device(shape, dtype.itemsize, sharding) for shape, dtype, sharding in results]
    )
    found = recorder.bindings().Executable(
        execute=None,
        handlers=None,
        call=functools.partial(_call, results),
        put=None,
        options=[],
        guard=None,
        allow=None,
        number_avals=[None, None],
        number_arrays=[None, None],
        number_sharding=place,
        number_devices=[],
        sizes=sizes.results,
        extra=0,
        shardings=list(shardings),
        tokens=False,
    )
    return found, sizes


def _result(spec: GraphSpec, root: int, sharding: Sharding) -> _Result:
    shape, dtype = result_spec(spec, root)
    return sharding_ids.padded_shape(shape, sharding), dtype, sharding


def result_spec(spec: GraphSpec, root: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the storage dtype of an output."""
    shape, dtype = spec.value_spec(root)
    return tuple(shape), dtypes.storage_numpy_dtype(dtype)  # type: ignore[arg-type]  # a root is a tensor


def _call(results: Sequence[_Result], arguments: list[Any]) -> list[AbstractArray]:
    return [AbstractArray(*result) for result in results]
