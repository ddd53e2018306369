"""Kernels as operators of torch, so that tracers see what comes out of them: one definition for each.

``torch.ops.xla.*`` are upstream's, ``torch.ops.torch_xla.*`` those that it has under no name of its own.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture import jax_function
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding
from torch_xla.distributed.spmd import Mesh, get_global_mesh

_libraries = {name: torch.library.Library(name, "FRAGMENT") for name in ("xla", "torch_xla")}


def define_operator(
    schema: str, run: Callable[..., Any], fake: Callable[..., Any], namespace: str = "torch_xla",
    gradient: tuple[Callable[..., None], Callable[..., Any]] | None = None,
) -> Any:  # fmt: skip
    """The operator of a schema: what it does on xla, and what tracers see.

    ``gradient`` is (what is kept of a call, the backward pass); without it a backward pass raises RuntimeError.
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
            f"{what.removesuffix('_backward')} has a gradient of the first order only, and this backward pass was "
            "asked for a gradient that has one itself (create_graph=True)"
        )
    raise RuntimeError(f"{what} has no gradient: call it under torch.no_grad(), or detach what it gives")


def call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Records a function of jax on xla tensors; ``name`` is part of what two different programs are told apart by."""
    return jax_function.call_jax(function, args, kwargs, name)


def check_on_xla(what: str, **tensors: torch.Tensor | None) -> None:
    """TypeError for a tensor of the CPU, and for what is no tensor; tensors without values are taken as they are."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: {name} must be a tensor, got {type(tensor)}")
        if tensor is not None and tensor.device.type not in ("xla", "meta"):
            raise TypeError(
                f'{what}: {name} is {format_tensors(tensor)} on {tensor.device}, expected an xla tensor; move it with .to("xla")'
            )


def format_tensors(*tensors: torch.Tensor) -> str:
    """Dtypes and shapes, for errors."""
    return ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the dtype of autocast, where it is on: as torch's own attention takes them."""
    if not torch.is_autocast_enabled("xla"):
        return tensors
    dtype = torch.get_autocast_dtype("xla")
    return tuple(t.to(dtype) if t.dtype in (torch.float32, torch.bfloat16, torch.float16) else t for t in tensors)


def encode_sharding(what: str, partition_spec: Sequence[Any] | str | None, mesh: Any) -> tuple[str, str]:
    """A partition spec and a mesh as text, which operators take; empty without."""
    if partition_spec is None:
        if mesh is not None:
            raise ValueError(f"{what}: a mesh needs a partition_spec, which says how q, k and v lie on it")
        return "", ""
    mesh = mesh if mesh is not None else get_global_mesh()
    if mesh is None:
        raise ValueError(
            f"{what}: partition_spec={partition_spec} needs a mesh: pass mesh=, or call xs.set_global_mesh(mesh) before"
        )
    return str(partition_spec), str(mesh)


@functools.lru_cache(256)
def decode_sharding(what: str, partition_spec: str, mesh: str, rank: int) -> KernelSharding | None:
    """What ``written`` gave; None for empty text. ValueError for a spec that does not fit."""
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
