"""Platform kernels: lowering for TPUs and GPUs, and results compared with the CPU.

No accelerator is required: jax lowers for other platforms, and Pallas' interpreter runs their kernels on the CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from torch_xla._engine import recorder
from torch_xla._engine.compat import pallas_attention as compat
from torch_xla._engine.graph import jaxpr_flops
from torch_xla._engine.lowering import flash_attention_cuda
from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.rules import attention
from torch_xla._engine.platform_kernels import (
    flash_attention,
    flash_attention_tpu,
    grouped_matmul,
    paged_attention,
    quantized_matmul,
    splash_attention,
)

rng = np.random.default_rng(7)
INTERPRET: Any = True


@pytest.fixture(autouse=True)
def no_cudnn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no kernel be cuDNN's, which may be installed and has no interpreter for the CPU."""
    if "cudnn" not in request.node.name:
        monkeypatch.setattr(flash_attention_cuda, "_has_cudnn", lambda *_: False)


def _normal(*shape: int, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), dtype)


def _integers(high: int, *shape: int) -> jax.Array:
    return jnp.asarray(rng.integers(0, high, shape), np.int32)


def lowered(function: Callable[..., Any], arguments: tuple[Any, ...], platform: str) -> str:
    """Lower a function for a platform with 64-bit types enabled, as steps are lowered."""
    with recorder.enable_x64():
        return str(jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text())


@dataclass
class Case:
    """A function and its kernel of another platform; None if jax cannot interpret the kernel."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tpu: Callable[..., Any] | None = None
    cuda: Callable[..., Any] | None = None
    marks: tuple[bool, bool] = (True, False)  # whether the lowered text has a kernel for (TPU, CUDA)
    rounding: float = 2e-5


def _qkv(heads: int, length: int, keys: int, size: int, dtype: Any = np.float32) -> tuple[jax.Array, ...]:
    shapes = (2, heads, length, size), (2, heads, keys, size), (2, heads, keys, size)
    return tuple(_normal(*shape, dtype=dtype) for shape in shapes)


def _flash(causal: bool, length: int, keys: int, size: int, ids: bool, ab: bool) -> tuple[Case, Case]:
    """Return the cases of the forward and the backward pass."""
    options = flash_attention.FlashAttentionOptions(causal, 0.3)
    bias = _normal(2, 2, length, keys) if ab else None
    segments = [jnp.sort(_integers(2, 2, n), 1) if ids else None for n in (length, keys)]
    inputs = (*_qkv(2, length, keys, size), bias, *segments)
    forward = functools.partial(flash_attention.forward, options=options, layout=None)
    backward = functools.partial(flash_attention.backward, options=options, layout=None, wants_ab=ab)
    out, sums = forward(*inputs)
    return (
        Case(forward, inputs, flash_attention_tpu.forward(options)),
        Case(backward, (_normal(*out.shape), *inputs, out, sums), flash_attention_tpu.backward(options, ab)),
    )


def _flash_cuda() -> tuple[Case, Case]:
    options = flash_attention.FlashAttentionOptions(True, 0.3)
    inputs = (*_qkv(2, 128, 128, 64, jnp.bfloat16), None, None, None)
    forward = functools.partial(flash_attention.forward, options=options, layout=None)
    backward = functools.partial(flash_attention.backward, options=options, layout=None, wants_ab=False)
    out, sums = forward(*inputs)
    grad = _normal(*out.shape, dtype=jnp.bfloat16)
    return (
        Case(forward, inputs, None, flash_attention_cuda.forward(options), (True, True), 4e-2),
        Case(backward, (grad, *inputs, out, sums), None, flash_attention_cuda.backward(options), (True, True), 4e-2),
    )


def _splash(causal: bool, ids: bool, soft_cap: float | None, window: int | None, fused: bool) -> tuple[Case, Case]:
    names = "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute block_q_dq block_kv_dq"
    blocks = tuple((name, 128) for name in names.split())
    options = splash_attention.SplashAttentionOptions(causal, soft_cap, window, blocks, fused, (), ())
    q, k, v = _normal(1, 2, 256, 64), _normal(1, 1, 256, 64), _normal(1, 1, 256, 64)
    inputs = q / 4, k, v, jnp.sort(_integers(3, 1, 256), 1) if ids else None
    forward = functools.partial(splash_attention.forward, options=options, layout=None)
    backward = functools.partial(splash_attention.backward, options=options, layout=None)
    out, sums = forward(*inputs)
    return (
        Case(forward, inputs, splash_attention._forward_tpu(options)),
        Case(backward, (_normal(*out.shape), *inputs, out, sums), splash_attention._backward_tpu(options)),
    )


def _paged() -> Case:
    inputs = _normal(3, 4, 128), _normal(2, 8, 16, 128), _normal(2, 8, 16, 128)
    where = jnp.asarray([5, 40, 64], np.int32), _integers(8, 3, 4)
    function = lambda *a: paged_attention.paged_attention(*a, 2, None, 10.0)
    tpu, cuda = (
        functools.partial(paged_attention._paged_tpu, 2, None, 10.0),
        functools.partial(paged_attention._paged_cuda, 2, 10.0),
    )
    return Case(function, (*inputs, *where), tpu, cuda, (True, True), 3e-2)  # the TPU kernel rounds keys to bfloat16


def _ragged() -> Case:
    options = paged_attention.RaggedOptions(0.1, window=4, soft_cap=5.0)
    lengths, starts = jnp.asarray([18, 7, 30, 0], np.int32), jnp.asarray([0, 5, 6, 16, 16], np.int32)
    where = lengths, _integers(16, 4, 4), starts, jnp.asarray([3], np.int32)
    # jax 0.10 cannot interpret this kernel: its interpreter does not support a reshaped copy.
    return Case(
        lambda *a: paged_attention.ragged_paged_attention(*a, options),
        (_normal(20, 4, 128), _normal(16, 8, 4, 128), *where),
    )


def _gmm(transposed: bool, offset: bool) -> Case:
    sizes, start = jnp.asarray([10, 0, 50, 20], np.int32), jnp.asarray(1, np.int32) if offset else None
    matrices = _normal(2 if offset else 4, 70, 40) if transposed else _normal(2 if offset else 4, 40, 70)
    function = lambda *a: grouped_matmul.gmm(*a, grouped_matmul.TILING, transposed)
    kernel = functools.partial(grouped_matmul._gmm_tpu, grouped_matmul.TILING, transposed)
    return Case(function, (_normal(100, 40), matrices, sizes, start), kernel)


def _tgmm(offset: bool) -> Case:
    sizes, start = jnp.asarray([10, 0, 50, 20], np.int32), jnp.asarray(1, np.int32) if offset else None
    count = 2 if offset else 4
    function = lambda *a: grouped_matmul.tgmm(*a, grouped_matmul.TILING, count)
    kernel = functools.partial(grouped_matmul._tgmm_tpu, grouped_matmul.TILING, count)
    return Case(function, (_normal(40, 100), _normal(100, 70), sizes, start), kernel)


CASES: dict[str, Callable[[], Case | tuple[Case, ...]]] = {
    "flash, whole tiles": lambda: _flash(True, 128, 256, 64, False, False),
    "flash, odd lengths": lambda: _flash(False, 100, 130, 40, False, False),
    "flash, all options": lambda: _flash(True, 130, 200, 136, True, True),
    "flash, Triton": _flash_cuda,
    "splash, causal": lambda: _splash(True, False, None, None, True),
    "splash, all options": lambda: _splash(True, True, 5.0, 40, False),
    "splash, full": lambda: _splash(False, True, None, None, True),
    "paged": _paged,
    "ragged": _ragged,
    "gmm": lambda: _gmm(False, False),
    "gmm, part": lambda: _gmm(True, True),
    "tgmm": lambda: _tgmm(False),
    "tgmm, part": lambda: _tgmm(True),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_other_platforms(name: str) -> None:
    made = CASES[name]()
    for case in made if isinstance(made, tuple) else (made,):
        assert ("tpu_custom_call" in lowered(case.function, case.arguments, "tpu")) == case.marks[0]
        assert ("triton" in lowered(case.function, case.arguments, "cuda")) == case.marks[1]
        assert "custom_call" not in lowered(case.function, case.arguments, "cpu").replace("@Sharding", "")
        wanted = jax.tree.leaves(jax.jit(case.function)(*case.arguments))
        for kernel in filter(None, (case.tpu, case.cuda)):
            with pltpu.force_tpu_interpret_mode(INTERPRET):
                found = jax.tree.leaves(kernel(*case.arguments))
            for ours, theirs in zip(found, wanted, strict=True):
                assert ours.dtype == theirs.dtype
                pair = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
                np.testing.assert_allclose(*pair, rtol=case.rounding, atol=case.rounding)


def test_cudnn_is_preferred_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice between cuDNN and Triton follows jax's check; this machine has no cuDNN."""
    used = []
    options = flash_attention.FlashAttentionOptions(True, 0.3)
    q, k, v = _qkv(2, 128, 128, 64)

    def attention(q: Any, k: Any, v: Any, **named: Any) -> Any:
        used.append(named.pop("implementation"))
        return original(q, k, v, implementation="xla", **named)

    original = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    out, sums = flash_attention_cuda.forward(options)(q, k, v)
    gradients = flash_attention_cuda.backward(options)(out, q, k, v)
    monkeypatch.undo()
    assert used and set(used) == {"cudnn"}
    wanted, lse = flash_attention.forward(q, k, v, None, None, None, options, None)
    theirs = flash_attention.backward(out, q, k, v, None, None, None, wanted, lse, options, None, False)
    np.testing.assert_allclose(sums, lse, rtol=1e-4, atol=1e-4)
    for ours, expected in zip((out, *gradients), (wanted, *theirs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_jax_without_the_private_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "has_flash_attention", lambda: False)
    call = functools.partial(
        flash_attention.forward, options=flash_attention.FlashAttentionOptions(True, 1.0), layout=None
    )
    assert "tpu_custom_call" not in lowered(call, (*_qkv(2, 128, 128, 64), None, None, None), "tpu")


def test_a_jax_without_the_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax deprecates them: without them the calls are lowered to XLA operations, with the same results."""
    for name in ("attention", "paged_attention"):
        monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.ops.gpu.{name}", None)  # importing it raises
    for case in (*_flash_cuda(), _paged()):
        assert "triton" not in lowered(case.function, case.arguments, "cuda")
    for case in _flash_cuda():
        found, wanted = jax.tree.leaves(case.cuda(*case.arguments)), jax.tree.leaves(case.function(*case.arguments))
        for result, expected in zip(found, wanted, strict=True):
            pair = np.asarray(result, np.float32), np.asarray(expected, np.float32)
            np.testing.assert_allclose(*pair, rtol=case.rounding, atol=case.rounding)


def test_implementation_of_the_platform() -> None:
    """The implementation follows the lowering platforms, possibly several; only it is traced, without 64-bit types."""
    traced = []

    def kernel(x: Any) -> Any:
        traced.append(jnp.arange(3).dtype)
        return {"y": x * 5}

    def call(x: Any) -> Any:
        return platform_dependent(lambda x: {"y": x * 3}, x, tpu=kernel)["y"]

    x = jnp.float32(2)
    assert jax.jit(call)(x) == 6 and not traced
    assert "5.0" in lowered(call, (x,), "tpu") and traced == [np.int32]
    assert "3.0" in lowered(call, (x,), "cuda")
    with recorder.enable_x64():
        both = jax.jit(call).trace(x).lower(lowering_platforms=("cpu", "tpu")).as_text()
    assert "3.0" in both and "5.0" in both


def test_mapped() -> None:
    def call(x: Any, y: Any) -> Any:
        return platform_dependent(lambda x, y: x @ y, x, y, tpu=lambda x, y: (x @ y) * 1.0)

    x, y = _normal(4, 3, 2), _normal(2, 5)
    np.testing.assert_allclose(jax.vmap(call, (0, None))(x, y), x @ y, rtol=1e-6)


def test_partitioned_program_uses_the_default() -> None:
    """XLA cannot partition a kernel; inside jax.shard_map it does not have to."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 1), ("x",))
    call = lambda x: platform_dependent(lambda x: x * 3, x, tpu=lambda x: x * 5)
    split = jax.shard_map(call, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=False)
    assert "5.0" in lowered(split, (jnp.zeros(4, np.float32),), "tpu")
    abstract = jax.sharding.AbstractMesh((4,), ("x",))
    sharded = jax.ShapeDtypeStruct((4,), np.float32, sharding=jax.NamedSharding(abstract, jax.P("x")))
    assert "3.0" in lowered(call, (sharded,), "tpu")


def test_int4_weights_have_four_bits() -> None:
    w = jnp.asarray([[7, -8, 1, 0]], np.int8)
    out = quantized_matmul.matmul(jnp.eye(4, dtype=np.float32), w, jnp.ones(1, np.float32), None, -1, True, False)
    np.testing.assert_array_equal(np.asarray(out)[:, 0], [7, -8, 1, 0])


@pytest.mark.parametrize("shared_heads", [False, True])
def test_scaled_dot_product_attention_on_a_gpu(shared_heads: bool) -> None:
    """The operator calls the same kernels where they support the call: 16 bits, no dropout, no shared heads."""
    call = attention.Attention(0.3, is_causal=True)
    q, k, v = _qkv(2, 128, 128, 64, jnp.bfloat16)
    k, v = (x[:, :1] if shared_heads else x for x in (k, v))
    forward = functools.partial(attention._attend, call, bias=None)
    assert ("triton" in lowered(forward, (q, k, v), "cuda")) is not shared_heads
    out, sums = forward(q, k, v)
    assert (out.dtype, sums.dtype) == (jnp.bfloat16, jnp.float32)
    backward = lambda grad, q, k, v, out, sums: attention._attend_backward(call, grad, q, k, v, None, out, sums, False)
    assert ("triton" in lowered(backward, (out, q, k, v, out, sums), "cuda")) is not shared_heads
    assert "triton" not in lowered(forward, (q, k, v), "cpu")
    dropping = functools.partial(
        attention._attend, replace(call, dropout=0.1, key_data=jax.random.key_data(jax.random.key(0)))
    )
    assert "triton" not in lowered(functools.partial(dropping, bias=None), (q, k, v), "cuda")


def test_flops_and_derivatives_are_those_of_the_default() -> None:
    q, k, v = _qkv(2, 128, 128, 64, jnp.bfloat16)
    attend = lambda q, k, v: attention._attend(attention.Attention(0.3, is_causal=True), q, k, v, None)[0]
    default = lambda q, k, v: attention.attention_forward(attention.Attention(0.3, is_causal=True), q, k, v, None)[0]
    assert "torch_xla_kernel" in str(jax.make_jaxpr(attend)(q, k, v))
    flops = [jaxpr_flops.count_function(function, [q, k, v]) for function in (attend, default)]
    assert flops[0] == flops[1] and flops[0]["bfloat16"] > 0
    for transform in (jax.jvp, lambda f, x, t: jax.vjp(f, *x)[1](f(*x))):
        found, wanted = (jax.tree.leaves(transform(function, (q, k, v), (q, k, v))) for function in (attend, default))
        for result, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(result, expected)
