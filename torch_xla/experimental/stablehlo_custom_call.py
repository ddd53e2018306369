"""Custom calls; and tensors that wait in the host's memory between the places of a step that use them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_xla._engine.lowering.rules import custom_call

__all__ = [
    "extract_custom_call_outputs_shape_dtype", "place_to_device", "place_to_host", "stablehlo_custom_call",
    "to_device_backward", "to_host_backward",
]  # fmt: skip


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """A ``stablehlo.custom_call``: what a function of that name, which XLA's runtime knows, gives for the tensors.

    It can be recorded on xla tensors, and traced by torch.export (torch_xla.stablehlo); in the second case whoever
    reads the program has to know the name.

    Args:
      args: tensors.
      call_target: the name, as registered with ``jax.ffi.register_ffi_target`` or known to who reads the program.
      output_shapes, output_dtypes: what it gives, one tensor or several.
      has_side_effect: XLA must not drop the call, nor join it with another.
      backend_config: a text for the function; with ``api_version`` below 4.
      api_version: how XLA calls the function: 0 and 1, the oldest way, to 4, XLA's FFI.
      frontend_attributes: texts by name that the operation carries.

    Returns the result, or a list of several. There is no gradient. Raises ValueError where shapes and dtypes are of
    different numbers, or a version does not exist; calling a function that nobody knows is an error when it runs.
    """
    if len(output_shapes) != len(output_dtypes):
        raise ValueError(f"stablehlo_custom_call: {len(output_shapes)} shapes and {len(output_dtypes)} dtypes")
    if not 0 <= api_version <= 4 or (backend_config and api_version == 4):
        raise ValueError(f"stablehlo_custom_call: api_version={api_version} with backend_config={backend_config!r}")
    options = {
        "has_side_effect": has_side_effect, "backend_config": backend_config, "api_version": max(1, api_version),
        "frontend_attributes": dict(frontend_attributes or {}),
    }  # fmt: skip
    results = custom_call.encode_specs(output_shapes, output_dtypes)
    found = torch.ops.torch_xla.stablehlo_custom_call(
        list(args), call_target, results, json.dumps(options, sort_keys=True)
    )
    return found[0] if len(found) == 1 else list(found)


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[list[torch.Size], list[torch.dtype]]:
    """The shapes and the dtypes of what a node of a traced graph gives."""
    values = n.meta["val"]
    tensors = list(values) if isinstance(values, (list, tuple)) else [values]
    return [t.shape for t in tensors], [t.dtype for t in tensors]


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of place_to_host: it comes from the device's memory."""
    return place_to_device(grad)


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of place_to_device: it goes to the host's memory."""
    return place_to_host(grad)


class _MemoryPlacement(torch.autograd.Function):
    """A tensor in the memory of the host or of the device; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, host: bool) -> torch.Tensor:
        ctx.host = host
        placed: torch.Tensor = torch.ops.torch_xla.to_memory_kind(t, host)
        return placed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.ops.torch_xla.to_memory_kind(grads[0], not ctx.host), None


def _to_memory_kind(name: str, t: torch.Tensor, host: bool) -> torch.Tensor:
    if t.device.type != "xla":
        raise ValueError(f"{name}: expected an xla tensor, got {t.dtype}{list(t.shape)} on {t.device}")
    placed: torch.Tensor = _MemoryPlacement.apply(t, host)  # type: ignore[no-untyped-call]
    return placed


def place_to_host(t: torch.Tensor) -> torch.Tensor:
    """The tensor in the host's memory, within the step: ``place_to_device`` brings it back for what uses it.

    On the CPU both are one memory. Differentiable. A value that is still there when the step ends lies on the device
    again. Raises ValueError for a tensor that is on no xla device.
    """
    return _to_memory_kind("place_to_host", t, True)


def place_to_device(t: torch.Tensor) -> torch.Tensor:
    """The tensor in the device's memory again. As place_to_host."""
    return _to_memory_kind("place_to_device", t, False)
