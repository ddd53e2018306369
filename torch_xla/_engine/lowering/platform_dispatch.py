"""Dispatches a function to an implementation per platform when a program is lowered.

    platform_dependent(default, x, y, tpu=f, cuda=g)    lowered for TPU: f(x, y); for CUDA: g(x, y); else default(x, y)

Unlike ``jax.lax.platform_dependent``, it traces only the implementation that is used. Kernels of other platforms need
not be importable, and need not support the shapes. A recorded program may be compiled for a platform that this machine
does not have.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from torch_xla._engine.base import partitioning

Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Kernels:
    """The implementations of platforms, and whether XLA can partition them."""

    special: dict[str, Implementation]
    partitioned: bool


_kernel_p = Primitive("torch_xla_kernel")
_kernel_p.multiple_results = True


def platform_dependent(
    default: Implementation,
    *args: Any,
    tpu: Implementation | None = None,
    cuda: Implementation | None = None,
    partitioned: bool = False,
) -> Any:
    """Compute ``default(*args)`` with the implementation of the platform that the program is lowered for.

    All implementations must return the same structure, shapes and dtypes; this is checked when one is lowered. The
    derivative is that of ``default``, whose jaxpr is a parameter of the equation: its FLOPs are counted.

    Args:
      default: a function of arrays or pytrees of arrays, including None. Traced with the caller's 64-bit setting.
      tpu, cuda: implementations for these platforms; None uses ``default``. Traced with 64-bit types disabled, because
        Pallas kernels mix up 32- and 64-bit integers otherwise.
      partitioned: whether XLA can partition ``tpu`` and ``cuda`` over several devices. XLA partitions no kernels: a
        program over several devices that uses one outside of ``jax.shard_map`` uses ``default`` instead.
    """
    leaves, tree = jax.tree.flatten(args)
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]

    def flat(implementation: Implementation) -> Implementation:
        return lambda *arrays: jax.tree.leaves(implementation(*jax.tree.unflatten(tree, arrays)))

    special = {name: flat(f) for name, f in (("tpu", tpu), ("cuda", cuda)) if f is not None}
    call_default = lambda *arrays: default(*jax.tree.unflatten(tree, arrays))
    traced, outs = jax.make_jaxpr(call_default, return_shape=True)(*leaves)
    results = _kernel_p.bind(*leaves, default=traced, kernels=_Kernels(special, partitioned))
    return jax.tree.unflatten(jax.tree.structure(outs), results)


def _abstract(*_: Any, default: ClosedJaxpr, kernels: _Kernels) -> list[ShapedArray]:
    return [ShapedArray(aval.shape, aval.dtype) for aval in default.out_avals]


def _evaluate(*args: Any, default: ClosedJaxpr, kernels: _Kernels) -> Any:
    return jax.jit(lambda *arrays: _kernel_p.bind(*arrays, default=default, kernels=kernels))(*args)


def _map(args: Sequence[Any], axes: Sequence[Any], *, default: ClosedJaxpr, kernels: _Kernels) -> tuple[Any, list[int]]:
    """Batch each implementation with jax.vmap."""
    in_axes = tuple(axes)  # None for arguments that are not mapped
    special = {name: jax.vmap(function, in_axes) for name, function in kernels.special.items()}
    batched = jax.vmap(jaxpr_as_fun(default), in_axes)
    results = platform_dependent(batched, *args, **special, partitioned=kernels.partitioned)
    return results, [0] * len(results)


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, default: ClosedJaxpr, kernels: _Kernels
) -> tuple[Any, Any]:
    """Differentiate the default, also on a platform with a kernel."""
    found = jax.jvp(jaxpr_as_fun(default), tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
    return found[0], found[1]


def _lower_default(ctx: mlir.LoweringRuleContext, *args: Any, default: ClosedJaxpr, kernels: _Kernels) -> Any:
    return mlir.lower_fun(jaxpr_as_fun(default), multiple_results=True)(ctx, *args)


def _lower_special(platform: str) -> Callable[..., Any]:
    def lower(ctx: mlir.LoweringRuleContext, *args: Any, default: ClosedJaxpr, kernels: _Kernels) -> Any:
        special = kernels.special.get(platform)
        if special is None or (not kernels.partitioned and partitioning.is_auto_partitioned(ctx)):
            return _lower_default(ctx, *args, default=default, kernels=kernels)
        avals = [(aval.shape, aval.dtype) for aval in default.out_avals]

        def checked(*arrays: Any) -> Any:
            results = special(*arrays)
            given = [(r.shape, np.dtype(r.dtype)) for r in results]
            assert given == avals, f"the kernel for {platform} returns {given}, the default returns {avals}"
            return results

        for_devices = _set_for_devices(partitioning.has_devices(ctx))
        with jax.enable_x64(False), _assume_device(platform), _accept_triton(), for_devices:
            return mlir.lower_fun(checked, multiple_results=True)(ctx, *args)

    return lower


@contextmanager
def _accept_triton() -> Iterator[None]:
    """Lower Pallas kernels for Triton without jax 0.12's deprecation warning, which only we can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


_for_devices: ContextVar[bool] = ContextVar("for_devices", default=True)


def is_lowered_for_devices() -> bool:
    """Whether the kernel that is lowered now is for given devices, not exported for a platform."""
    return _for_devices.get()


@contextmanager
def _set_for_devices(value: bool) -> Iterator[None]:
    token = _for_devices.set(value)
    try:
        yield
    finally:
        _for_devices.reset(token)


#: The device that kernels are lowered for if this machine has none of its platform: kind, cores, platform of jax.
_ASSUMED_DEVICES = {"tpu": ("TPU v5e", 1, "tpu"), "cuda": ("NVIDIA A100", None, "gpu")}


def _assume_device(platform: str) -> AbstractContextManager[Any]:
    """Let Pallas kernels lower within the block if there is neither a device of the platform nor an abstract device.

    To compile for another device, set ``jax.sharding.AbstractMesh(..., abstract_device=)``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    kind, cores, backend = _ASSUMED_DEVICES[platform]
    if jax.default_backend() == backend or mesh.abstract_device is not None:
        return nullcontext()
    device_options: dict[str, Any] = {"device_kind": kind, "num_cores": cores}
    if "platform" in inspect.signature(jax.sharding.AbstractDevice).parameters:  # jax 0.10.0: the kind tells it
        device_options["platform"] = backend
    device = jax.sharding.AbstractDevice(**device_options)
    return jax.sharding.use_abstract_mesh(mesh.update(abstract_device=device))


_kernel_p.def_abstract_eval(_abstract)
_kernel_p.def_impl(_evaluate)
batching.primitive_batchers[_kernel_p] = _map
ad.primitive_jvps[_kernel_p] = _differentiate
mlir.register_lowering(_kernel_p, _lower_default)
mlir.register_lowering(_kernel_p, _lower_special("tpu"), platform="tpu")
mlir.register_lowering(_kernel_p, _lower_special("cuda"), platform="cuda")
