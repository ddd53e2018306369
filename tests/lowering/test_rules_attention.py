"""scaled_dot_product_attention is one op of the graph, with the results of torch's decomposition."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.base import dtypes, partitioning
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.registry import LoweringRuleContext
from torch_xla._engine.lowering.rules import attention

ONE_OP = "xla::_scaled_dot_product_efficient_attention"


def _inputs(heads: int, groups: int, rows: int, keys: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (2, heads, rows, 8), (2, groups, keys, 8), (2, groups, keys, 6)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def _run(device: str, inputs: list[torch.Tensor], mask: torch.Tensor | None = None, **options: object) -> list:
    leaves = [t.detach().to(device).requires_grad_() for t in inputs]
    mask = None if mask is None else mask.detach().to(device).requires_grad_(mask.requires_grad)
    out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, **options)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(device, out.dtype)
    wanted = leaves if mask is None or not mask.requires_grad else [*leaves, mask]
    results = [out.detach(), *torch.autograd.grad((out * weights).sum(), wanted)]
    torch_xla.sync()  # one program for all of them
    return results


def _assert_as_on_cpu(inputs: list[torch.Tensor], mask: torch.Tensor | None = None, **options: object) -> None:
    expected = _run("cpu", inputs, mask, **options)
    with counts() as moved:
        got = [t.cpu() for t in _run("xla", inputs, mask, **options)]
    assert moved[ONE_OP] == 1 and moved[f"{ONE_OP}_backward"] == 1 and not moved.fallbacks
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)


MASKS = {
    "none": None,
    "bool": torch.arange(5 * 7).reshape(5, 7) % 3 != 0,
    "rows without a key": torch.tensor([True, False, True, True, False])[:, None].expand(5, 7),
    "float": torch.linspace(-2, 2, 35).reshape(5, 7),
    "float with a gradient": torch.linspace(-2, 2, 35).reshape(5, 7).requires_grad_(),
    "of each head": torch.linspace(-2, 2, 2 * 4 * 35).reshape(2, 4, 5, 7).requires_grad_(),
    "of each batch": torch.linspace(-2, 2, 14).reshape(2, 1, 1, 7).requires_grad_(),
}


@pytest.mark.parametrize("block", [attention.BLOCK_ELEMENTS, 2 * 4 * 2 * 7])
@pytest.mark.parametrize("name", list(MASKS))
def test_masks(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", block)  # 5 rows in one block, or in three of two
    program_cache.cache.clear()
    _assert_as_on_cpu(_inputs(4, 4, 5, 7), MASKS[name])


#: (shape of the query, of the key; devices) -> number of blocks. A device must not materialize more weights than
#: BLOCK_ELEMENTS; each of 256 devices has one of 256 batches, and blocks of 512 rows.
BLOCKS = {
    ((1, 8, 4, 4096, 128), (1, 8, 4096, 128), 1): 8,
    ((256, 8, 4, 4096, 128), (256, 8, 4096, 128), 1): 2048,
    ((256, 8, 4, 4096, 128), (256, 8, 4096, 128), 256): 8,
    ((2, 1, 4, 4096, 128), (2, 1, 4096, 128), 256): 2,
    ((2, 1, 4, 64, 128), (2, 1, 64, 128), 4): 1,
    ((1 << 20, 1, 1, 512, 64), (1 << 20, 1, 512, 64), 1): 512,
}


@pytest.mark.parametrize(("query", "key", "devices"), BLOCKS)
def test_blocks(query: tuple[int, ...], key: tuple[int, ...], devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "_devices", lambda: devices)
    q, k = (jax.ShapeDtypeStruct(shape, np.float32) for shape in (query, key))
    assert attention._blocks(q, k) == BLOCKS[query, key, devices]


@pytest.mark.parametrize("rows", [5, 9])
@pytest.mark.parametrize("block", [attention.BLOCK_ELEMENTS, 2 * 4 * 2 * 7])
def test_causal(rows: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", block)
    program_cache.cache.clear()
    _assert_as_on_cpu(_inputs(4, 4, rows, 7), is_causal=True)


def test_causal_blocks_read_only_the_keys_they_attend_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of two rows compute scores of two keys, and of four. Backward recomputes them."""
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", 8)
    call, x = attention.Attention(1.0, True), jax.ShapeDtypeStruct((1, 1, 4, 3), np.float32)
    forward = str(jax.make_jaxpr(lambda q, k, v: attention.attention_forward(call, q, k, v, None))(x, x, x))
    assert "f32[1,1,1,2,2] = dot_general" in forward and "f32[1,1,1,2,4] = dot_general" in forward, forward
    assert "scan" not in forward
    lse = jax.ShapeDtypeStruct((1, 1, 4), np.float32)
    backward = str(
        jax.make_jaxpr(
            lambda do, q, k, v, o, lse: attention.attention_backward(call, do, q, k, v, None, o, lse, False)
        )(x, x, x, x, x, lse)
    )
    assert backward.count("f32[1,1,1,2,2] = dot_general") == 2 == backward.count("f32[1,1,1,2,4] = dot_general")
    assert backward.count("optimization_barrier") == 2, "without barriers XLA retains the scores of forward"


def test_grouped_heads_and_scale() -> None:
    _assert_as_on_cpu(_inputs(6, 2, 5, 7), enable_gqa=True, scale=0.3)
    _assert_as_on_cpu(_inputs(6, 2, 5, 7), MASKS["float with a gradient"], enable_gqa=True)


def test_recorded_gradients_of_shared_heads_are_their_sum() -> None:
    """Whatever torch's meta function returns: the graph has the sum only."""
    q, k, v = (t.to("xla").requires_grad_() for t in _inputs(6, 2, 5, 7))
    gradients = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum(), [k, v])
    text = torch_xla._XLAC._get_xla_tensors_text(list(gradients))
    assert "_scaled_dot_product_efficient_attention_backward" in text and "f32[2,2,7,8]" in text
    assert "f32[2,6,7,8]" not in text, text


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("block", [attention.BLOCK_ELEMENTS, 2 * 6 * 2 * 7])
def test_gradients_of_shared_heads_are_summed_in_the_products(
    is_causal: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", block)
    call = attention.Attention(0.5, is_causal)
    q, k, v = (jnp.asarray(t.numpy()) for t in _inputs(6, 2, 6, 7))
    out, lse = attention.attention_forward(call, q, k, v, None)

    def backward(per_head: bool) -> Callable[..., tuple[Any, ...]]:
        return lambda *x: attention.attention_backward(call, *x[:4], None, *x[4:], False, per_head)

    arrays = jnp.cos(out), q, k, v, out, lse
    dq, dk, dv, _ = backward(False)(*arrays)
    _, each_key, each_value, _ = backward(True)(*arrays)
    assert (dk.shape, dv.shape, each_key.shape) == (k.shape, v.shape, (2, 6, 7, 8))
    expected = jax.grad(lambda *x: jnp.sum(jnp.sin(attention.attention_forward(call, *x, None)[0])), (0, 1, 2))(q, k, v)
    summed = (each.reshape(2, 2, 3, *each.shape[2:]).sum(2) for each in (each_key, each_value))
    for found, reference in zip((dq, dk, dv, *summed), (*expected, *expected[1:]), strict=True):
        np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-5)
    for per_head in (False, True):
        assert ("f32[2,2,3,7,8]" in str(jax.make_jaxpr(backward(per_head))(*arrays))) == per_head


def test_three_dimensions() -> None:
    _assert_as_on_cpu([t[0] for t in _inputs(4, 4, 5, 7)], MASKS["bool"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_products_have_16_bit_factors(dtype: torch.dtype) -> None:
    inputs = _inputs(4, 4, 5, 7, dtype)
    exact = _run("cpu", [t.float() for t in inputs])
    got = [t.cpu() for t in _run("xla", inputs)]
    for g, e in zip(got, exact, strict=True):
        assert g.dtype == dtype
        torch.testing.assert_close(g.float(), e, rtol=2e-2, atol=2e-2)
    assert _factors_of_products(dtype) == {"f16" if dtype == torch.float16 else "bf16"}


def _factors_of_products(dtype: torch.dtype) -> set[str]:
    """Return the operand dtypes of all matmuls in forward and backward, as lowered by the rules."""
    narrow = dtypes.storage_numpy_dtype(dtype)
    wide = np.dtype(np.float32)

    def both(q: jax.Array, seed: jax.Array) -> object:
        outs = [(q.shape, dtype), ((2, 4, 32), torch.float32), ((), torch.int64), ((), torch.int64)]
        context = LoweringRuleContext(ONE_OP, outs, seed=seed)
        out, lse, *rng = RULES["aten::_scaled_dot_product_efficient_attention"].function(context, q, q, q, None, True)
        backward = RULES["aten::_scaled_dot_product_efficient_attention_backward"].function
        return backward(context, out, q, q, q, None, out, lse.astype(wide), *rng, 0.0, [True] * 3 + [False])

    with jax.enable_x64(True):
        text = jax.jit(both).lower(jnp.zeros((2, 4, 5, 8), narrow), jnp.zeros(2, np.uint32)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 7
    return {
        kind for line in products for kind in re.findall(r"x([a-z]+[0-9]+)>", line.split(" : (")[1].split(" -> ")[0])
    }


def test_decomposition_of_unsupported_calls() -> None:
    inputs = _inputs(4, 4, 5, 7)
    with counts() as moved:
        for double in ([t.double() for t in inputs], [t[None] for t in inputs]):
            torch.testing.assert_close(_run("xla", double)[0].cpu(), _run("cpu", double)[0], rtol=1e-5, atol=1e-6)
        with sdpa_kernel(SDPBackend.MATH):
            _run("xla", inputs)
    assert moved[ONE_OP] == 0
    q = torch.ones(1, 1, 2, 2, device="xla")
    with pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(q, q, q, attn_mask=q[0, 0], is_causal=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_double_backward_and_forward_mode() -> None:
    inputs = _inputs(4, 2, 5, 7)

    def second(device: str) -> list[torch.Tensor]:
        leaves = [t.to(device).requires_grad_() for t in inputs]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        first = torch.autograd.grad(out.pow(2).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))

    def forward_mode(device: str) -> torch.Tensor:
        q, k, v = (t.to(device) for t in inputs)
        call = lambda q: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return torch.func.jvp(call, (q,), (torch.ones_like(q),))[1]

    with sdpa_kernel(SDPBackend.MATH):
        expected, tangent = second("cpu"), forward_mode("cpu")
    for g, e in zip(second("xla"), expected, strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(forward_mode("xla").cpu(), tangent, rtol=1e-4, atol=1e-5)


def test_vmap_and_func_grad() -> None:
    q, k, v = _inputs(4, 4, 5, 7)
    loss = lambda q, k, v: F.scaled_dot_product_attention(q, k, v).sum()
    for function in (torch.vmap(loss), torch.func.grad(loss), torch.vmap(torch.func.grad(loss))):
        got = function(*(t.to("xla") for t in (q, k, v))).cpu()
        torch.testing.assert_close(got, function(q, k, v), rtol=1e-4, atol=1e-5)


def test_dropout_has_one_mask_in_both_directions() -> None:
    torch.manual_seed(3)
    q = torch.zeros(2, 2, 16, 4, device="xla", requires_grad=True)
    k = torch.zeros(2, 2, 64, 4, device="xla")
    v = torch.ones(2, 2, 64, 4, device="xla", requires_grad=True)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    (grad,) = torch.autograd.grad(out.sum(), v)
    # with equal weights a result is the share of the remaining keys, over 0.75; a gradient counts the uses of its key
    kept = (out.detach() * 0.75 * 64).cpu()
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    assert 0.7 < kept.mean() / 64 < 0.8 and kept.std() > 0
    torch.testing.assert_close(grad.sum().cpu(), out.detach().sum().cpu(), rtol=1e-5, atol=1e-3)
    expected = (kept[..., 0].sum(-1) / 0.75 / 64).sum()
    torch.testing.assert_close(grad.cpu()[..., 0].sum(), expected, rtol=1e-5, atol=1e-3)
    assert not torch.equal(out, F.scaled_dot_product_attention(q, k, v, dropout_p=0.25))
