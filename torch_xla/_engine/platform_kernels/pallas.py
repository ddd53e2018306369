"""Pallas kernels of users: as they are where they can be compiled, interpreted on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from torch_xla._engine.platform_kernels.platform_dispatch import platform_dependent


def with_cpu_interpreter(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, which takes arrays and constants, such that it can be lowered for the CPU, too."""

    @functools.wraps(kernel)
    def called(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[i] for i in places]
        wide = any(a.dtype.itemsize == 8 for a in arrays)

        def compiled(*given: Any) -> Any:
            full = list(leaves)
            for place, array in zip(places, given, strict=True):
                full[place] = array
            positional, named = jax.tree.unflatten(tree, full)
            with jax.enable_x64(wide):
                return kernel(*positional, **named)

        def interpreted(*given: Any) -> Any:
            with _interpreter():
                return compiled(*given)

        return platform_dependent(interpreted, *arrays, tpu=compiled, cuda=compiled)

    return called


def _interpreter() -> Any:
    """In the block Pallas' interpreter, whose steps are operations of jax, takes the place of compiled kernels."""
    from jax.experimental.pallas import tpu

    # True, rather than parameters of the emulator of TPUs, which calls back into Python: no program could be kept.
    mode: Any = True
    return tpu.force_tpu_interpret_mode(mode) if hasattr(tpu, "force_tpu_interpret_mode") else nullcontext()
