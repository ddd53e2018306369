"""The flash attention that jax has for TPUs, with what its gradient needs; torch's operators of quantized graphs."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_MODULE = "jax.experimental.pallas.ops.tpu.flash_attention"
_WITHOUT = "flash_attention on a TPU is computed by XLA's own operations, not by jax's kernel"
_FORWARD = PrivateApi(
    _MODULE, "_flash_attention", "flash_attention keeps the sums of its weights for the gradient", _WITHOUT
)
_BACKWARD = PrivateApi(_MODULE, "_flash_attention_bwd", "the gradient of flash_attention from those sums", _WITHOUT)

_QUANTIZED = PrivateApi(
    "torch.ao.quantization.fx._decomposed",
    "quantized_decomposed_lib",
    "torch.ops.quantized_decomposed, which torch defines when it is imported",
    "torch_xla.experimental.quantized cannot be imported",
)


def has_flash_attention() -> bool:
    """Whether this jax has the kernels of both directions."""
    return _FORWARD.resolve_or_none() is not None and _BACKWARD.resolve_or_none() is not None


def flash_attention(q: Any, k: Any, v: Any, ab: Any, ids: Any, causal: bool, scale: float, blocks: Any) -> Any:
    """(result, sums of the weights, largest scores); raises MissingError."""
    return _FORWARD.resolve()(q, k, v, ab, ids, True, causal, scale, blocks, False)


def flash_attention_backward(causal: bool, scale: float, blocks: Any, saved: tuple[Any, ...], grad: Any) -> Any:
    """Gradients of q, k, v and ab; ``saved`` is all arrays of the forward pass, and its three results."""
    return _BACKWARD.resolve()(False, causal, scale, blocks, False, saved, grad)[:4]


def load_quantized_operators() -> None:
    """Has torch define ``torch.ops.quantized_decomposed``; raises MissingError."""
    _QUANTIZED.resolve()
