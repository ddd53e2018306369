"""Record custom calls, and offload tensors to host memory within a step."""

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
    """Record a ``stablehlo.custom_call``: call a function that is registered with XLA's runtime.

    Works on xla tensors and in traces of torch.export (torch_xla.stablehlo); the consumer of an exported program must
    know the call target. There is no gradient. Calling a target that is not registered fails when the program runs.

    Args:
      args: tensors.
      call_target: name of the target, as registered with ``jax.ffi.register_ffi_target`` or known to the consumer.
      output_shapes, output_dtypes: shape and dtype of each result.
      has_side_effect: XLA must not remove the call or merge it with another.
      backend_config: text that is passed to the function; with ``api_version`` below 4.
      api_version: calling convention: 0 and 1 are the oldest, 4 is XLA's FFI.
      frontend_attributes: string attributes of the operation.

    Returns:
      The result, or a list of several.

    Raises:
      ValueError: the numbers of shapes and dtypes differ, or the version does not exist.
    """
    if len(output_shapes) != len(output_dtypes):
        raise ValueError(f"stablehlo_custom_call: got {len(output_shapes)} shapes but {len(output_dtypes)} dtypes")
    if not 0 <= api_version <= 4 or (backend_config and api_version == 4):
        raise ValueError(
            f"stablehlo_custom_call: api_version={api_version} does not support backend_config={backend_config!r}"
        )
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
    """Return the shapes and dtypes of the results of an fx node."""
    values = n.meta["val"]
    tensors = list(values) if isinstance(values, (list, tuple)) else [values]
    return [t.shape for t in tensors], [t.dtype for t in tensors]


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient of place_to_host, moved to device memory."""
    return place_to_device(grad)


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient of place_to_device, moved to host memory."""
    return place_to_host(grad)


class _MemoryPlacement(torch.autograd.Function):
    """Move a tensor to host or device memory; its gradient moves the other way."""

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
    """Move the tensor to host memory within the step; ``place_to_device`` moves it back before its use.

    Differentiable. On the CPU both memories are the same; the HLO has the annotation all the same. A value that is in
    host memory when the step ends is moved to the device.

    Args:
      t: an xla tensor of any shape and dtype.

    Raises:
      ValueError: the tensor is not on an xla device.
    """
    return _to_memory_kind("place_to_host", t, True)


def place_to_device(t: torch.Tensor) -> torch.Tensor:
    """Move the tensor back to device memory.

    See [place_to_host][torch_xla.experimental.stablehlo_custom_call.place_to_host].

    Args:
      t: an xla tensor that place_to_host returned, or a result computed from it.

    Raises:
      ValueError: the tensor is not on an xla device.
    """
    return _to_memory_kind("place_to_device", t, False)
