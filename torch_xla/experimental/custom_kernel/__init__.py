"""Custom kernels under upstream's names: attention, grouped and int8 matmuls, user-defined Pallas kernels.

On TPUs they are the Pallas kernels of jax, on NVIDIA GPUs jax's kernels for these, and on other platforms the same
computation as XLA operations. The implementation is chosen when a program is compiled, for its target platform.
"""

from __future__ import annotations

from torch_xla._internal.xla_ops import XLA_LIB
from torch_xla.experimental.custom_kernel._flash_attention import FlashAttention, flash_attention
from torch_xla.experimental.custom_kernel._grouped_matmul import GMM, gmm, gmm_backward, tgmm
from torch_xla.experimental.custom_kernel._int8_matmul import quantized_matmul_int8
from torch_xla.experimental.custom_kernel._integer_counts import _histogram
from torch_xla.experimental.custom_kernel._paged_attention import (
    multi_queries_paged_attention,
    paged_attention,
    ragged_paged_attention,
)
from torch_xla.experimental.custom_kernel._pallas import (
    convert_torch_dtype_to_jax,
    jax_import_guard,
    make_kernel_from_pallas,
    to_jax_shape_dtype_struct,
)

__all__ = [
    "GMM",
    "XLA_LIB",
    "FlashAttention",
    "_histogram",
    "convert_torch_dtype_to_jax",
    "flash_attention",
    "gmm",
    "gmm_backward",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "paged_attention",
    "quantized_matmul_int8",
    "ragged_paged_attention",
    "tgmm",
    "to_jax_shape_dtype_struct",
]
