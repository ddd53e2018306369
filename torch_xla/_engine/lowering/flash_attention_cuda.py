"""Flash attention on NVIDIA GPUs for 16-bit arrays: cuDNN if it supports the call, else jax's Pallas Triton kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering import platform_dispatch
from torch_xla._engine.lowering.pallas_gpu import load_pallas_gpu_module

Maybe = jax.Array | None
#: Block size of the Triton kernel; sequence lengths must be multiples of it.
BLOCK = 64
_LARGEST = 128
_DTYPES = (np.dtype(jnp.bfloat16), np.dtype(np.float16))


class Options(Protocol):
    """What the kernels need to know of a call besides its arrays."""

    @property
    def causal(self) -> bool: ...
    @property
    def scale(self) -> float: ...


def supports(q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> bool:
    """Return whether a kernel supports the call: 16-bit, no bias or segments, lengths that are multiples of a block."""
    plain = ab is None and q_ids is None and kv_ids is None
    alike = q.shape[:2] == k.shape[:2] and k.shape == v.shape and 0 not in (*q.shape, *k.shape)
    full_blocks = q.shape[2] % BLOCK == 0 and k.shape[2] % BLOCK == 0
    return (
        plain and alike and full_blocks and q.dtype in _DTYPES and q.shape[3] % 8 == 0 and 16 <= q.shape[3] <= _LARGEST
    )


def forward(options: Options) -> Callable[..., Any]:
    """Return the function (q, k, v, None, None, None) -> (output, log-sum-exp)."""

    def run(q: Any, k: Any, v: Any, *_: None) -> Any:
        moved = [jnp.moveaxis(x, 1, 2) for x in (q, k, v)]
        kernel = _select_kernel(options, moved)
        out, lse = kernel(options, residual=True)(*moved)
        lse = lse * math.log(2) if kernel is _triton else jnp.moveaxis(lse, 1, 2)
        return jnp.moveaxis(out, 2, 1), lse.astype(np.float32)

    return run


def backward(options: Options) -> Callable[..., Any]:
    """Return the function (gradient, arguments of forward, its results) -> gradients of q, k, v.

    It runs the forward pass again: neither kernel accepts the saved results of forward.
    """

    def run(grad: Any, q: Any, k: Any, v: Any, *_: Any) -> Any:
        moved = [jnp.moveaxis(x, 1, 2) for x in (q, k, v)]
        _, vjp = jax.vjp(_select_kernel(options, moved)(options), *moved)
        return tuple(jnp.moveaxis(g, 2, 1) for g in vjp(jnp.moveaxis(grad, 1, 2)))

    return run


def _select_kernel(options: Options, moved: list[Any]) -> Callable[..., Callable[..., Any]]:
    """Return cuDNN's attention if it supports the call, else Triton's, else, in a jax without it, XLA's.

    jax cannot export cuDNN's attention: its lowering asks for the number of devices.
    tokamax, which newer releases of jax recommend instead, lowers for a GPU only on a machine that has one, and returns
    no log-sum-exp.
    """
    if platform_dispatch.is_lowered_for_devices() and _has_cudnn(options, moved):
        return _cudnn
    return _xla if load_pallas_gpu_module("attention") is None else _triton


def _xla(options: Options, residual: bool = False) -> Callable[..., Any]:
    return _dot_product_attention("xla", options, residual)


def _cudnn(options: Options, residual: bool = False) -> Callable[..., Any]:
    return _dot_product_attention("cudnn", options, residual)


def _dot_product_attention(implementation: str, options: Options, residual: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        call: Any = jax.nn.dot_product_attention  # its overloads accept only literals for return_residual
        return call(
            q, k, v,
            scale=options.scale, is_causal=options.causal, implementation=implementation, return_residual=residual,
        )  # fmt: skip

    return attention


def _has_cudnn(options: Options, moved: list[Any]) -> bool:
    """Return whether this machine has a cuDNN release that supports the call; jax checks this while tracing."""
    try:
        jax.eval_shape(_cudnn(options, residual=True), *moved)
        jax.eval_shape(lambda *a: jax.vjp(_cudnn(options), *a)[0], *moved)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _triton(options: Options, residual: bool = False) -> Callable[..., Any]:
    kernel = load_pallas_gpu_module("attention")
    assert kernel is not None
    blocks = kernel.BlockSizes(
        block_q=BLOCK, block_k=BLOCK, block_q_dkv=32, block_kv_dkv=32, block_q_dq=32, block_kv_dq=32
    )

    def attention(q: Any, k: Any, v: Any) -> Any:
        return kernel.mha(q, k, v, None, options.scale, options.causal, blocks, return_residuals=residual)

    return attention
