"""Lowers Pallas kernels of users for every platform: compiled where Mosaic or Triton can, interpreted on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from torch_xla._engine.lowering.platform_dispatch import platform_dependent


def with_cpu_interpreter(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``kernel``, a function of arrays and constants, so that it can also be lowered for the CPU."""

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
    """Replace compiled Pallas kernels by Pallas' interpreter, which emits jax operations, within the block."""
    from jax.experimental.pallas import tpu

    # True instead of the parameters of the TPU emulator, which calls back into Python: such programs cannot be cached.
    mode: Any = True
    return tpu.force_tpu_interpret_mode(mode) if hasattr(tpu, "force_tpu_interpret_mode") else nullcontext()
