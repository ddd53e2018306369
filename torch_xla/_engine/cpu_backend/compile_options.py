"""XLA:CPU compile options: disables YNNPACK matmuls in programs whose matrix multiplications are all small.

By default each matrix multiplication is a graph of YNNPACK, XLA's kernel library, which the first run of a program
builds: for fifty small layers that takes longer than the step (``python -m benchmarks.first``, a second process). Up to
a size XLA's own kernels are as fast. Batched matrix multiplications are not changed.

This uses a debug option of XLA (checked with jaxlib 0.10.2); if XLA lacks it, programs compile with default options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import jax

from torch_xla._engine.base import xla_flags
from torch_xla._engine.device import capabilities

_OPTION = "xla_cpu_experimental_ynn_fusion_type"
_REDUCTIONS_ONLY: dict[str, str | bool] = {_OPTION: "LIBRARY_FUSION_TYPE_REDUCE"}

#: Multiplications (m * n * k) of the largest matrix multiplication that counts as small.
_LARGE = 1 << 22

_PRODUCT = re.compile(
    r"stablehlo\.dot_general ([^\n]*?)contracting_dims = \[([\d, ]*)\] x [^\n]*"
    r": \(tensor<([\dx]*)x[a-z]\w*>, [^\n]*\) -> tensor<([\dx]*)x[a-z]\w*>"
)


def compile_with_options(
    lowered: jax.stages.Lowered, places: Sequence[jax.Device], text: str | None = None
) -> jax.stages.Compiled:
    """Compile a program for these devices. ``text`` is its StableHLO, if already available."""
    if not places or not capabilities.runs_in_process(places[0]) or _OPTION in xla_flags.read().text:
        return lowered.compile()
    if not _has_only_small_matmuls(text or lowered.as_text()):
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=_REDUCTIONS_ONLY)
    except jax.errors.JaxRuntimeError as error:
        if _OPTION not in str(error):
            raise
        return lowered.compile()


def _has_only_small_matmuls(text: str) -> bool:
    found = _PRODUCT.findall(text)
    return bool(found) and all(
        "batching" not in before and _size(result) * _size(left, over) <= _LARGE for before, over, left, result in found
    )


def _size(shape: str, dims: str | None = None) -> int:
    """Return the number of elements of a shape such as ``4x8``, or the product of the selected dims."""
    sizes = [int(size) for size in shape.split("x") if size]
    return math.prod(sizes if dims is None else (sizes[int(dim)] for dim in dims.split(",") if dim))
