"""jax's flash attention kernel for TPUs and its gradient; torch's quantized operators."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_MODULE = "jax.experimental.pallas.ops.tpu.flash_attention"
_WITHOUT = "flash_attention on a TPU uses XLA operations instead of jax's kernel"
_FORWARD = PrivateApi(
    _MODULE, "_flash_attention", "flash_attention, which saves the softmax statistics for the gradient", _WITHOUT
)
_BACKWARD = PrivateApi(
    _MODULE, "_flash_attention_bwd", "the gradient of flash_attention from these statistics", _WITHOUT
)

_QUANTIZED = PrivateApi(
    "torch.ao.quantization.fx._decomposed",
    "quantized_decomposed_lib",
    "torch.ops.quantized_decomposed",
    "torch_xla.experimental.quantized cannot be imported",
)


def has_flash_attention() -> bool:
    """Whether this jax has the forward and the backward kernel."""
    return _FORWARD.resolve_or_none() is not None and _BACKWARD.resolve_or_none() is not None


def flash_attention(q: Any, k: Any, v: Any, ab: Any, ids: Any, causal: bool, scale: float, blocks: Any) -> Any:
    """Return (result, softmax denominators, row maxima). Raises MissingPrivateApiError."""
    return _FORWARD.resolve()(q, k, v, ab, ids, True, causal, scale, blocks, False)


def flash_attention_backward(causal: bool, scale: float, blocks: Any, saved: tuple[Any, ...], grad: Any) -> Any:
    """Return the gradients of q, k, v and ab; ``saved`` are the arguments and the three results of forward."""
    return _BACKWARD.resolve()(False, causal, scale, blocks, False, saved, grad)[:4]


def load_quantized_operators() -> None:
    """Define ``torch.ops.quantized_decomposed``. Raises MissingPrivateApiError."""
    _QUANTIZED.resolve()
