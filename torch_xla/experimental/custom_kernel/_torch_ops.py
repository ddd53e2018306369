"""Register kernels as torch operators with fake implementations, so that tracers see their output specs.

``torch.ops.xla.*`` are upstream's operators; ``torch.ops.torch_xla.*`` are operators without an upstream name.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture import jax_function
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding
from torch_xla._internal.xla_ops import XLA_LIB
from torch_xla.distributed.spmd import Mesh, get_global_mesh

_libraries = {"xla": XLA_LIB, "torch_xla": torch.library.Library("torch_xla", "FRAGMENT")}


def define_operator(
    schema: str, run: Callable[..., Any], fake: Callable[..., Any], namespace: str = "torch_xla",
    gradient: tuple[Callable[..., None], Callable[..., Any]] | None = None,
) -> Any:  # fmt: skip
    """Register an operator with its implementation on xla and its fake implementation for tracers.

    Args:
      schema: torch schema of the operator.
      run: implementation on xla tensors.
      fake: returns empty results of the right shapes and dtypes.
      namespace: ``torch_xla`` or ``xla``.
      gradient: (setup_context, backward) as for torch.library.register_autograd; without it backward raises
        RuntimeError.
    """
    library = _libraries[namespace]
    name = f"{namespace}::{schema.partition('(')[0]}"
    library.define(schema)
    library.impl(name, run, "XLA")
    torch.library.register_fake(name, fake, lib=library)
    keep, backward = gradient or (_empty_context, functools.partial(_reject_backward, name))
    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
    return getattr(getattr(torch.ops, namespace), schema.partition("(")[0]).default


def _empty_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    pass


def _reject_backward(name: str, *_: Any) -> None:
    what = name.partition("::")[2]
    if what.endswith("_backward"):
        raise RuntimeError(
            f"{what.removesuffix('_backward')} has no second derivative; this backward pass was called with "
            "create_graph=True"
        )
    raise RuntimeError(f"{what} has no gradient: call it under torch.no_grad(), or detach its result")


def call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record a jax function on xla tensors; ``name`` distinguishes programs with different options."""
    return jax_function.call_jax(function, args, kwargs, name)


def check_on_xla(what: str, **tensors: torch.Tensor | None) -> None:
    """Raise TypeError for a CPU tensor, and for an object that is not a tensor; meta and fake tensors pass."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: {name} must be a tensor, got {type(tensor)}")
        if tensor is not None and tensor.device.type not in ("xla", "meta"):
            raise TypeError(
                f"{what}: {name} is {format_tensors(tensor)} on {tensor.device}, expected an xla tensor; "
                'move it with .to("xla")'
            )


def format_tensors(*tensors: torch.Tensor) -> str:
    """Format dtypes and shapes for error messages."""
    return ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast the tensors to autocast's dtype if it is enabled, as torch's scaled_dot_product_attention does."""
    if not torch.is_autocast_enabled("xla"):
        return tensors
    dtype = torch.get_autocast_dtype("xla")
    return tuple(t.to(dtype) if t.dtype in (torch.float32, torch.bfloat16, torch.float16) else t for t in tensors)


def encode_sharding(what: str, partition_spec: Sequence[Any] | str | None, mesh: Any) -> tuple[str, str]:
    """Encode a partition spec and a mesh as text arguments for operators; empty if there is no spec."""
    if partition_spec is None:
        if mesh is not None:
            raise ValueError(f"{what}: a mesh requires a partition_spec, the sharding of q, k and v over the mesh")
        return "", ""
    mesh = mesh if mesh is not None else get_global_mesh()
    if mesh is None:
        raise ValueError(
            f"{what}: partition_spec={partition_spec} requires a mesh: pass mesh= or call xs.set_global_mesh(mesh)"
        )
    return str(partition_spec), str(mesh)


@functools.lru_cache(256)
def decode_sharding(what: str, partition_spec: str, mesh: str, rank: int) -> KernelSharding | None:
    """Decode the result of encode_sharding; None for empty text. Raises ValueError for an invalid spec."""
    if not partition_spec:
        return None
    found = Mesh.from_str(mesh)
    try:
        spec = ast.literal_eval(partition_spec)
    except (ValueError, SyntaxError):
        spec = None
    if found is None or not isinstance(spec, tuple):
        raise ValueError(f"{what}: expected a mesh and a tuple, got mesh {mesh!r} and partition_spec {partition_spec}")
    try:
        sharding = found.sharding(spec, rank)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    return KernelSharding(found.get_jax_mesh(), tuple(sharding.spec))
