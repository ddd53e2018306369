"""Calls of a function that XLA's runtime, or who reads the program, knows by name: ``stablehlo.custom_call``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import torch
from jax.experimental.xla_metadata import set_xla_metadata

from torch_xla._engine.base import dtypes
from torch_xla._engine.compat import executables
from torch_xla._engine.lowering.registry import lower

#: The operator's name; its second argument is the target.
NAME = "torch_xla::stablehlo_custom_call"

#: What results are: a shape and torch's name of a dtype for each, as JSON.
Results = list[tuple[list[int], str]]


def encode_specs(shapes: Sequence[Sequence[int]], kinds: Sequence[torch.dtype]) -> str:
    """Shapes and dtypes as the operator takes them."""
    names = [str(kind).removeprefix("torch.") for kind in kinds]
    return json.dumps([(list(shape), name) for shape, name in zip(shapes, names, strict=True)])


def _decode_specs(results: str) -> list[tuple[list[int], torch.dtype]]:
    return [(shape, getattr(torch, kind)) for shape, kind in json.loads(results)]


def _custom_call_meta(inputs: Sequence[torch.Tensor], target: str, results: str, options: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=kind, device="meta") for shape, kind in _decode_specs(results)]


@lower(NAME)
def _custom_call(inputs: Sequence[jax.Array], target: str, results: str, options: str) -> list[jax.Array]:
    executables.initialize_kernels(target.encode())  # jax does so only where its own functions call it
    how: dict[str, Any] = json.loads(options)
    outs = [jax.ShapeDtypeStruct(shape, dtypes.numpy_dtype(kind)) for shape, kind in _decode_specs(results)]
    call = jax.ffi.ffi_call(
        target,
        outs,
        has_side_effect=how["has_side_effect"],
        custom_call_api_version=how["api_version"],
        legacy_backend_config=how["backend_config"] if how["api_version"] < 4 else None,
    )
    attributes = how["frontend_attributes"]
    with set_xla_metadata(**attributes) if attributes else contextlib.nullcontext():
        return list(call(*inputs))


_library = torch.library.Library("torch_xla", "FRAGMENT")
_schema = "stablehlo_custom_call(Tensor[] inputs, str target, str results, str options) -> Tensor[]"


def define() -> None:
    """Makes the operator known to torch; once."""
    _library.impl(_library.define(_schema), _custom_call_meta, "Meta")
