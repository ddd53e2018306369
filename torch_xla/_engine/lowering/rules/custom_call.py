"""Lowers ``torch_xla::stablehlo_custom_call``: a call of a target that XLA's runtime or a consumer implements."""

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

#: The shape, and the name of the torch dtype, of each result; encoded as JSON.
Results = list[tuple[list[int], str]]


def encode_specs(shapes: Sequence[Sequence[int]], kinds: Sequence[torch.dtype]) -> str:
    """Encode shapes and dtypes as the operator's ``results`` argument."""
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
    """Register the operator with torch, once."""
    _library.impl(_library.define(_schema), _custom_call_meta, "Meta")
