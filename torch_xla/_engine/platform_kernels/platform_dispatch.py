"""One function, implemented apart for each platform; which one is used is decided when a program is lowered.

    by_platform(default, x, y, tpu=f, cuda=g)    lowered for a TPU: f(x, y); for CUDA: g(x, y); else default(x, y)

Unlike in ``jax.lax.platform_dependent``, an implementation is traced where it is used only: a kernel that a platform
lacks need not be imported, nor have the shapes that another one asks for. A recorded program may be compiled for a
platform that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from torch_xla._engine.base import partitioning

Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class _PlatformImpls:
    default: Implementation
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
    """``default(*args)``, or what another platform has for it: the same structure, shapes and dtypes.

    Args:
      default: takes arrays, or structures of them; None is one. Traced with the 64-bit types of its surroundings.
      tpu, cuda: traced without jax's 64-bit types, with which kernels mix up integers of 32 and 64 bits. None: as
        ``default``.
      partitioned: whether the compiler can split ``tpu`` and ``cuda`` over several devices. It splits no kernel: where
        a program over several devices has one outside of ``jax.shard_map``, ``default`` is what it gets.

    It has no derivative. An implementation that gives other shapes or dtypes is an error when it is lowered.
    """
    leaves, tree = jax.tree.flatten(args)
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]
    found: list[Any] = []

    def flat_default(*arrays: Any) -> list[Any]:
        results, structure = jax.tree.flatten(default(*jax.tree.unflatten(tree, arrays)))
        found[:] = [structure]
        return results

    def flat(implementation: Implementation) -> Implementation:
        return lambda *arrays: jax.tree.leaves(implementation(*jax.tree.unflatten(tree, arrays)))

    special = {name: flat(f) for name, f in (("tpu", tpu), ("cuda", cuda)) if f is not None}
    outs = jax.eval_shape(flat_default, *leaves)
    avals = tuple((out.shape, np.dtype(out.dtype)) for out in outs)
    results = _kernel_p.bind(*leaves, choice=_PlatformImpls(flat_default, special, partitioned), avals=avals)
    return jax.tree.unflatten(found[0], results)


def _abstract(*_: Any, choice: _PlatformImpls, avals: Sequence[tuple[tuple[int, ...], Any]]) -> list[ShapedArray]:
    return [ShapedArray(shape, dtype) for shape, dtype in avals]


def _evaluate(*args: Any, choice: _PlatformImpls, avals: Any) -> Any:
    return jax.jit(lambda *arrays: _kernel_p.bind(*arrays, choice=choice, avals=avals))(*args)


def _map(args: Sequence[Any], axes: Sequence[Any], *, choice: _PlatformImpls, avals: Any) -> tuple[Any, list[int]]:
    """Under jax.vmap, the same of implementations that are mapped themselves."""
    places = tuple(axes)  # None for what is not mapped
    special = {name: jax.vmap(function, places) for name, function in choice.special.items()}
    results = platform_dependent(jax.vmap(choice.default, places), *args, **special, partitioned=choice.partitioned)
    return results, [0] * len(results)


def _lower_default(ctx: mlir.LoweringRuleContext, *args: Any, choice: _PlatformImpls, avals: Any) -> Any:
    return mlir.lower_fun(choice.default, multiple_results=True)(ctx, *args)


def _lower_special(platform: str) -> Callable[..., Any]:
    def lower(ctx: mlir.LoweringRuleContext, *args: Any, choice: _PlatformImpls, avals: Any) -> Any:
        special = choice.special.get(platform)
        if special is None or (not choice.partitioned and partitioning.is_auto_partitioned(ctx)):
            return _lower_default(ctx, *args, choice=choice, avals=avals)

        def checked(*arrays: Any) -> Any:
            results = special(*arrays)
            given = tuple((r.shape, np.dtype(r.dtype)) for r in results)
            assert given == avals, f"the kernel for {platform} gives {given}, and the default {avals}"
            return results

        with jax.enable_x64(False), _assume_tpu_target() if platform == "tpu" else nullcontext():
            return mlir.lower_fun(checked, multiple_results=True)(ctx, *args)

    return lower


def _assume_tpu_target() -> AbstractContextManager[Any]:
    """In the block kernels find a TPU to be lowered for: a v5e, where there is none, and nobody has named one.

    Who compiles for another names it as jax does: ``jax.sharding.AbstractMesh(..., abstract_device=)``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if jax.default_backend() == "tpu" or mesh.abstract_device is not None:
        return nullcontext()
    device = jax.sharding.AbstractDevice(device_kind="TPU v5e", num_cores=1, platform="tpu")
    return jax.sharding.use_abstract_mesh(mesh.update(abstract_device=device))


_kernel_p.def_abstract_eval(_abstract)
_kernel_p.def_impl(_evaluate)
batching.primitive_batchers[_kernel_p] = _map
mlir.register_lowering(_kernel_p, _lower_default)
mlir.register_lowering(_kernel_p, _lower_special("tpu"), platform="tpu")
mlir.register_lowering(_kernel_p, _lower_special("cuda"), platform="cuda")
