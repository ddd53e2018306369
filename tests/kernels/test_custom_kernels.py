"""Paged attention, grouped and int8 matmul, splash attention and users' kernels, compared with eager CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from torch import Tensor

from tests.support.helpers import counts, run_script
from torch_xla.core import xla_builder
from torch_xla.experimental import custom_kernel as kernels
from torch_xla.experimental import quantized, splash_attention, xla_quantized_matmul
from torch_xla.experimental.splash_attention import SplashAttentionConfig
from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear, quantized_matmul

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def xla(*values: Any) -> list[Any]:
    return [v.to("xla") if isinstance(v, Tensor) else v for v in values]


def close(ours: Tensor, theirs: Tensor, rounding: float) -> None:
    torch.testing.assert_close(ours.cpu().double(), theirs.double(), rtol=rounding, atol=rounding)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, cap: float | None = None, scale: float = 1.0) -> Tensor:
    """Compute attention of one sequence, [rows, heads, size]; keys have fewer heads. Fully masked rows are zero."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    weights = scores.masked_fill(~seen, -1e300).softmax(-1) * seen.any(-1, keepdim=True)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cap", [None, 2.0])
def test_paged_attention(dtype: torch.dtype, cap: float | None) -> None:
    q, k, v = torch.randn(3, 4, 8, dtype=dtype), *(torch.randn(2, 6, 4, 8, dtype=dtype) for _ in range(2))
    lengths, pages = torch.tensor([5, 0, 12], dtype=torch.int32), torch.randint(0, 6, (3, 3), dtype=torch.int32)
    with counts() as moved:
        result = kernels.paged_attention(*xla(q, k, v, lengths, pages), 3, attn_logits_soft_cap=cap).cpu()
    assert not moved.fallbacks and result.dtype == dtype
    for i, length in enumerate(lengths.tolist()):
        keys, values = (x[:, pages[i]].flatten(1, 2).transpose(0, 1) for x in (k, v))
        seen = (torch.arange(12) < length)[None]
        close(result[i : i + 1], attend(q[i : i + 1], keys, values, seen, cap), DTYPES[dtype])


def test_several_queries() -> None:
    q, k, v = torch.randn(2, 4, 4, 8), *(torch.randn(2, 6, 4, 8) for _ in range(2))
    lengths, counted, pages = torch.tensor([9, 12]), torch.tensor([2, 4]), torch.randint(0, 6, (2, 3))
    result = kernels.multi_queries_paged_attention(*xla(q, k, v, lengths, pages, counted), 3, 2).cpu()
    for i in range(2):
        keys, values = (x[:, pages[i]].flatten(1, 2).transpose(0, 1) for x in (k, v))
        rows = torch.arange(4)[:, None]
        seen = (torch.arange(12) <= lengths[i] - counted[i] + rows) & (rows < counted[i])
        close(result[i], attend(q[i], keys, values, seen), 1e-5)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 3, "soft_cap": 2.0, "k_scale": 0.5, "v_scale": 2.0}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_paged_attention(dtype: torch.dtype, options: dict[str, Any]) -> None:
    q, pages = torch.randn(20, 4, 8, dtype=dtype), torch.randn(6, 4, 4, 8, dtype=dtype)
    lengths, starts = torch.tensor([8, 7, 12, 0]), torch.tensor([0, 5, 6, 16, 20])
    where, count = torch.randint(0, 6, (4, 3)), torch.tensor([3])
    arguments = xla(q, pages, lengths, where, starts, count)
    result = kernels.ragged_paged_attention(*arguments, sm_scale=0.5, **options).cpu()
    assert not result[16:].any() and result.dtype == dtype
    for i in range(3):
        rows = q[starts[i] : starts[i + 1]]
        both = pages[where[i]].flatten(0, 1).double()
        keys, values = both[:, 0::2] * options.get("k_scale", 1), both[:, 1::2] * options.get("v_scale", 1)
        at = lengths[i] - len(rows) + torch.arange(len(rows))[:, None]
        column = torch.arange(12)
        seen = (column <= at) & (column < lengths[i])
        if "sliding_window" in options:
            seen &= column > at - options["sliding_window"]
        wanted = attend(rows, keys, values, seen, options.get("soft_cap"), 0.5)
        close(result[starts[i] : starts[i + 1]], wanted, DTYPES[dtype])
    again = torch.ops.xla.ragged_paged_attention(*arguments, 0.5, use_kernel=False)
    assert again.shape == q.shape


SIZES = [3, 0, 4, 1]


def grouped(lhs: Tensor, rhs: Tensor, first: int = 0) -> Tensor:
    starts = np.cumsum([0, *SIZES])
    parts = [lhs[starts[i] : starts[i + 1]] for i in range(4)]
    local = range(first, first + len(rhs))
    done = [part @ rhs[i - first] if i in local else part @ rhs[0] * 0 for i, part in enumerate(parts)]
    return torch.cat([*done, lhs[starts[4] :] @ rhs[0] * 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("offset", [None, 1])
def test_gmm(dtype: torch.dtype, transposed: bool, offset: int | None) -> None:
    count = 4 if offset is None else 2
    lhs, rhs = torch.randn(10, 5), torch.randn(count, 5, 6)
    lhs, rhs = lhs.to(dtype).requires_grad_(), rhs.to(dtype).requires_grad_()
    wanted = grouped(lhs.double(), rhs.double(), offset or 0)
    weights = torch.randn(wanted.shape).to(dtype)
    (wanted * weights).sum().backward()
    x, w = (t.detach().to("xla").requires_grad_() for t in (lhs, rhs.mT if transposed else rhs))
    group_offset = None if offset is None else torch.tensor([offset], dtype=torch.int32).to("xla")
    result = kernels.gmm(x, w, torch.tensor(SIZES).to("xla"), None, group_offset, transposed)
    (result * weights.to("xla")).sum().backward()
    close(result.detach(), wanted.detach(), DTYPES[dtype])
    close(x.grad, lhs.grad, DTYPES[dtype])
    close(w.grad.mT if transposed else w.grad, rhs.grad, DTYPES[dtype])


def test_gmm_keeps_a_nan_in_its_group() -> None:
    lhs, rhs, sizes = torch.randn(10, 5), torch.randn(4, 5, 6), torch.tensor(SIZES)
    group = max(range(4), key=SIZES.__getitem__)
    start, end = sum(SIZES[:group]), sum(SIZES[: group + 1])
    rhs[group, 0, 0] = torch.nan
    has_nan = kernels.gmm(*xla(lhs, rhs, sizes)).isnan().any(1).cpu()
    assert has_nan.nonzero().flatten().tolist() == list(range(start, end))
    lhs[start, 0] = torch.inf
    finite = kernels.tgmm(*xla(torch.randn(3, 10), lhs, sizes)).isfinite().flatten(1).all(1).cpu()
    assert finite.tolist() == [other != group for other in range(4)]


def test_gmm_by_its_other_names() -> None:
    lhs, rhs, sizes = xla(torch.randn(10, 5), torch.randn(4, 5, 6), torch.tensor(SIZES))
    inputs = [[t.detach().requires_grad_() for t in (lhs, rhs)] for _ in range(3)]
    kernels.gmm(*inputs[0], sizes).square().sum().backward()
    kernels.GMM.apply(*inputs[1], sizes).square().sum().backward()
    traced = torch.compile(lambda a, b: torch.ops.xla.gmm(a, b, sizes).square().sum(), backend="aot_eager")
    traced(*inputs[2]).backward()
    for pair in zip(*inputs, strict=True):
        close(pair[1].grad, pair[0].grad.cpu(), 1e-5)
        close(pair[2].grad, pair[0].grad.cpu(), 1e-5)
    part = kernels.tgmm(lhs.t(), lhs, sizes, group_offset=torch.tensor(1).to("xla"), num_actual_groups=2)
    close(part, kernels.tgmm(lhs.t(), lhs, sizes).cpu()[1:3], 1e-5)


#: name -> (block size, zero point, int4, quantized activations)
PRODUCTS = {
    "plain": (-1, False, False, False),
    "zero point": (-1, True, False, False),
    "int4": (-1, True, True, False),
    "rounded": (-1, False, False, True),
    "rounded, zero point": (-1, True, False, True),
    "blocks": (4, False, False, False),
    "blocks, all options": (4, True, True, False),
}


def _weights(block: int, zero: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    shape, scales = ((2, 4, 5), (2, 5)) if block > 0 else ((5, 8), (5,))
    w = torch.randint(-8, 8, shape, dtype=torch.int8)
    return w, torch.rand(scales), torch.rand(scales) if zero else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_quantized_matmul(name: str, dtype: torch.dtype) -> None:
    """The function, the operator and the layer agree with the torch reference on the CPU, and with a dense matmul."""
    block, zero, int4, rounded = PRODUCTS[name]
    x, (w, scale, point) = torch.randn(2, 3, 8, dtype=dtype), _weights(block, zero)
    options = block, int4, rounded
    on_cpu = x.clone().requires_grad_()
    wanted = quantized_matmul(on_cpu, w, scale, point, *options)
    rounding = 5 * DTYPES[dtype]
    if not rounded:
        dense = w.flatten(0, 1).double() * scale.repeat_interleave(4, 0) if block > 0 else (w * scale[:, None]).t()
        shift = 0 if point is None else point.repeat_interleave(4, 0) if block > 0 else point
        close(wanted.detach(), x.double() @ (dense.double() - shift), rounding)
    on_xla, others = x.to("xla").requires_grad_(), xla(w, scale, point)
    result = xla_quantized_matmul.quantized_matmul_xla(on_xla, *others, *options)
    close(result.detach(), wanted.detach(), rounding)
    close(torch.ops.xla.quantized_matmul(on_xla, *others, *options).detach(), wanted.detach(), rounding)
    layer = XlaQuantizedLinear(8, 5, not zero, *options)
    layer.load_quantized_weight(w, scale, point)
    close(layer(x).detach(), wanted.detach(), rounding)
    close(layer.to("xla")(on_xla).detach(), wanted.detach(), rounding)
    if rounded:
        with pytest.raises(RuntimeError, match="has no gradient with quantize_activation"):
            result.sum().backward()
    else:
        result.sum().backward(), wanted.sum().backward()
        close(on_xla.grad, on_cpu.grad, rounding)


def test_histogram_of_integers() -> None:
    values = torch.tensor([0, 3, 3, 7, -1, 3], dtype=torch.int32, device="xla")
    counts = kernels._histogram(values, 0, 4)
    assert (counts.tolist(), counts.dtype) == ([1, 0, 0, 3, 0], torch.int32)
    with pytest.raises(AssertionError, match="expected an int32 tensor"):
        kernels._histogram(values.long(), 0, 4)


def test_quantized_matmul_int8() -> None:
    x, (w, scale, _) = torch.randn(3, 8), _weights(-1, False)
    for rounded in (False, True):
        wanted = quantized_matmul(x, w, scale, quantize_activation=rounded)
        close(kernels.quantized_matmul_int8(*xla(x, w, scale), quantize_activation=rounded), wanted, 1e-4)


def test_quantized_decomposed() -> None:
    """The operators agree with torch's CPU kernels; no loop over channels is recorded."""
    operators = torch.ops.quantized_decomposed
    x, bounds = torch.randn(3, 40), (-128, 127, torch.int8)
    per_channel = torch.rand(40) + 0.1, torch.randint(-3, 3, (40,)), 1
    for scaling, kind in (((0.1, 3), "tensor"), (per_channel, "channel")):
        down, up = getattr(operators, f"quantize_per_{kind}"), getattr(operators, f"dequantize_per_{kind}")
        wanted = down(x, *scaling, *bounds)
        found = down(*xla(x, *scaling), *bounds)
        assert found.dtype == torch.int8 and torch.equal(found.cpu(), wanted)
        torch.testing.assert_close(up(found, *xla(*scaling), *bounds).cpu(), up(wanted, *scaling, *bounds))
    assert quantized.xla_quantize_per_tensor(x, 0.1, 3, *bounds).dtype == torch.int8


#: name -> (causal, soft cap, window, segments, dtype)
SPLASH = {
    "causal": (True, None, None, False, torch.float32),
    "all options": (True, 2.0, 2, True, torch.float32),
    "full": (False, 2.0, None, True, torch.float32),
    "bfloat16": (True, None, 2, False, torch.bfloat16),
}


@pytest.mark.parametrize("name", SPLASH)
def test_splash_attention(name: str) -> None:
    causal, cap, window, segments, dtype = SPLASH[name]
    leaves = [(torch.randn(2, heads, 6, 8) / 2).to(dtype) for heads in (4, 2, 2)]
    weights = torch.randn(2, 4, 6, 8).to(dtype)
    ids = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1]]) if segments else None
    config = SplashAttentionConfig(attentiontype_local_sliding=window is not None, slide_window_size=window)
    assert SplashAttentionConfig.from_json(config.to_json()) == config
    seen = torch.ones(6, 6, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen if window is None else seen.tril(window).triu(-window)
    on_cpu = [t.clone().requires_grad_() for t in leaves]
    rows = []
    for i in range(2):
        own = seen if ids is None else seen & (ids[i][:, None] == ids[i][None])
        rows.append(attend(*(t[i].transpose(0, 1) for t in on_cpu), own, cap).transpose(0, 1))
    wanted = torch.stack(rows)
    (wanted * weights).sum().backward()
    on_xla = [t.to("xla").requires_grad_() for t in leaves]
    arguments = config.to_json(), None if ids is None else ids.to("xla"), causal, cap
    result = splash_attention.splash_attention(*on_xla, *arguments)
    (result * weights.to("xla")).sum().backward()
    rounding = 6e-2 if dtype == torch.bfloat16 else 1e-4
    for ours, theirs in ((result, wanted), *((a.grad, b.grad) for a, b in zip(on_xla, on_cpu, strict=True))):
        close(ours.detach(), theirs.detach(), rounding)
    with torch.no_grad():
        grads = splash_attention.sa_custom_backward(weights.to("xla"), *on_xla, *arguments)
        close(splash_attention.SplashAttention.apply(*on_xla, *arguments), result.cpu(), rounding)
    for ours, theirs in zip(grads, on_xla, strict=True):
        close(ours, theirs.grad.cpu(), rounding)
    wrapped = splash_attention.tpu_splash_attention_jax_call_wrapper(*on_xla, config, *arguments[1:])
    close(wrapped[0], result.detach().cpu(), rounding)


def test_splash_attention_of_jax() -> None:
    """jax can differentiate it, and call_jax accepts it."""
    q = torch.randn(1, 2, 4, 8)
    config = SplashAttentionConfig()
    call = lambda x: splash_attention.splash_attention_jax_wrapper(x, x, x, None, True, config, None)
    mine = q.to("xla").requires_grad_()
    splash_attention.splash_attention(mine, mine, mine, config.to_json()).sum().backward()
    theirs = jax.grad(lambda x: call(x).sum())(jnp.asarray(q.numpy()))
    np.testing.assert_allclose(mine.grad.cpu(), theirs, rtol=1e-4, atol=1e-5)
    close(xla_builder.call_jax(call, (q.to("xla"),)), torch.from_numpy(np.array(call(jnp.asarray(q.numpy())))), 1e-5)


def _add_kernel(x: Any, y: Any, out: Any, *, by: float) -> None:
    out[...] = x[...] + y[...] * by


def add(x: Any, y: Any, by: float = 1.0) -> Any:
    return pl.pallas_call(
        lambda *refs: _add_kernel(*refs, by=by),
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))] * 2,
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


def _scratch_kernel(x: Any, total: Any, top: Any, kept: Any) -> None:
    kept[...] = jax.lax.fori_loop(0, 3, lambda i, sums: sums + x[i], jnp.zeros_like(x[0]))
    total[...] = kept[...]
    top[...] = jnp.max(x[...], 0)


def scratch(x: Any) -> Any:
    one = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return pl.pallas_call(_scratch_kernel, out_shape=(one, one), scratch_shapes=[pltpu.VMEM(x.shape[1:], x.dtype)])(x)


def test_kernels_of_users() -> None:
    x, y = torch.randn(16, 128), torch.randn(16, 128)
    mine = kernels.make_kernel_from_pallas(add, lambda x, y, by=1.0: [(x.shape, x.dtype)])
    with counts() as moved:
        close(mine(*xla(x, y)), x + y, 1e-6)
        close(mine(*xla(x, y), by=2.0, static_argnames=["by"]), x + 2 * y, 1e-6)
    assert moved.compilations == 2 and not moved.fallbacks
    several = kernels.make_kernel_from_pallas(scratch, lambda x: [(x.shape[1:], x.dtype)] * 2)
    total, top = several(torch.stack([x, y, x]).to("xla"))
    close(total, x + y + x, 1e-6)
    close(top, torch.maximum(x, y), 0)
    wrong = kernels.make_kernel_from_pallas(add, lambda x, y: [(x.shape, torch.bfloat16)])
    with pytest.raises(ValueError, match=r"add returned torch.float32\[16, 128\], but output_shape_dtype_fn declared"):
        wrong(*xla(x, y))
    kernels.jax_import_guard()
    assert kernels.to_jax_shape_dtype_struct(x.bfloat16()).dtype == kernels.convert_torch_dtype_to_jax(torch.bfloat16)


def _t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="xla")


_INT = torch.int32
_pages = lambda **o: kernels.paged_attention(
    o.get("q", _t(2, 4, 8)), _t(2, 6, 4, 8), o.get("v", _t(2, 6, 4, 8)), o.get("n", _t(2, dtype=_INT)),
    o.get("at", _t(2, 3, dtype=_INT)), o.get("block", 3), o.get("mode"),
)  # fmt: skip
_ragged = lambda **o: kernels.ragged_paged_attention(
    o.pop("q", _t(5, 4, 8)), o.pop("kv", _t(6, 4, 4, 8)), _t(2, dtype=_INT), _t(2, 3, dtype=_INT),
    o.pop("starts", _t(3, dtype=_INT)), _t(1, dtype=_INT), **o,
)  # fmt: skip
_int8 = torch.int8
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "paged: device": (
        lambda: _pages(n=torch.zeros(2, dtype=_INT)),
        TypeError,
        r"^paged_attention: lengths is .* on cpu",
    ),
    "paged: shapes": (lambda: _pages(v=_t(2, 6, 4, 9)), ValueError, r"^paged_attention: q must be \[batch, heads"),
    "paged: heads": (lambda: _pages(q=_t(2, 3, 8)), ValueError, "3 heads of q must be a multiple of the 2"),
    "paged: lengths": (
        lambda: _pages(n=_t(2)),
        ValueError,
        r"lengths must be integers of shape \[2\], got torch.float32",
    ),
    "paged: block": (lambda: _pages(block=2), ValueError, "a block of 2 pages does not divide the 3"),
    "paged: cores": (lambda: _pages(mode="x"), ValueError, "megacore_mode must be None"),
    "ragged: heads": (
        lambda: _ragged(kv=_t(6, 4, 6, 8)),
        ValueError,
        "must be a multiple of the 6 heads of keys and values",
    ),
    "ragged: starts": (lambda: _ragged(starts=_t(2, dtype=_INT)), ValueError, r"cu_q_lens must be .* \[3\]"),
    "ragged: window": (lambda: _ragged(sliding_window=0), ValueError, "sliding_window must be positive, got 0"),
    "gmm: groups": (lambda: kernels.gmm(_t(4, 5), _t(2, 5, 6), _t(3, dtype=_INT)), ValueError, "pass group_offset"),
    "gmm: inner": (lambda: kernels.gmm(_t(4, 5), _t(2, 6, 5), _t(2, dtype=_INT)), ValueError, "lhs has 5 columns"),
    "gmm: sizes": (lambda: kernels.gmm(_t(4, 5), _t(2, 5, 6), _t(2)), ValueError, "group_sizes must be integers"),
    "gmm: tiles": (
        lambda: kernels.gmm(_t(4, 5), _t(2, 5, 6), _t(2, dtype=_INT), (8, 8, 8)),
        ValueError,
        "three multiples of 128",
    ),
    "int8: dtype": (lambda: kernels.quantized_matmul_int8(_t(2, 3), _t(4, 3), _t(4)), TypeError, "w of int8"),
    "int8: shapes": (
        lambda: kernels.quantized_matmul_int8(_t(2, 3), _t(4, 2, dtype=_int8), _t(4)),
        ValueError,
        r"w \[outputs, inputs\]",
    ),
    "int8: zero point": (
        lambda: kernels.quantized_matmul_int8(_t(2, 3), _t(4, 3, dtype=_int8), _t(4), _t(4)),
        NotImplementedError,
        "quantized_matmul_xla with zero_point=",
    ),
    "quantized: blocks": (
        lambda: xla_quantized_matmul.quantized_matmul_xla(_t(2, 8), _t(3, 4, 5, dtype=_int8), _t(3, 5), block_size=4),
        ValueError,
        r"w must be \[inputs / block_size, block_size, outputs\]",
    ),
    "splash: window": (
        lambda: splash_attention.splash_attention(
            *[_t(1, 2, 4, 8)] * 3, SplashAttentionConfig(attentiontype_local_sliding=True).to_json()
        ),
        ValueError,
        "requires a slide_window_size",
    ),
    "splash: shapes": (
        lambda: splash_attention.splash_attention(_t(1, 2, 4, 8), *[_t(1, 3, 4, 8)] * 2, "{}"),
        ValueError,
        "numbers of heads that divide q",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


def test_missing_gradient_raises() -> None:
    result = kernels.quantized_matmul_int8(_t(2, 3).requires_grad_(), _t(4, 3, dtype=_int8), _t(4))
    with pytest.raises(RuntimeError, match=r"^quantized_matmul_int8 has no gradient"):
        result.sum().backward()


SPMD = """
import torch, torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
from torch_xla.experimental import custom_kernel as kernels
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention
xr.use_spmd()
mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
xs.set_global_mesh(mesh)
spec = ("data", "model", None, None)
torch.manual_seed(0)

def close(ours, theirs, rounding):
    pair = ours.detach().cpu().double(), theirs.detach().double()
    torch.testing.assert_close(*pair, rtol=rounding, atol=rounding)

leaves = [torch.randn(4, 2, 5, 8), torch.randn(4, 2, 6, 8), torch.randn(4, 2, 6, 8), torch.randn(4, 2, 5, 6)]
ids = [torch.randint(0, 2, (4, n)).sort().values for n in (5, 6)]
marked = [xs.mark_sharding(i.to("xla"), mesh, ("data", None)) for i in ids]
for dtype, rounding in ((torch.float32, 1e-5), (torch.bfloat16, 4e-2)):
    cast = [t.to(dtype) for t in leaves]
    on_cpu = [t.clone().requires_grad_() for t in cast]
    q, k, v, ab = (t.double() for t in on_cpu)
    seen = torch.ones(5, 6, dtype=torch.bool).tril() & (ids[0][:, None, :, None] == ids[1][:, None, None, :])
    weights = ((q @ k.mT + ab) * 0.5).masked_fill(~seen, -1e300).softmax(-1) * seen.any(-1, keepdim=True)
    wanted = weights @ v
    wanted.square().sum().backward()
    for layout in ({"partition_spec": spec, "mesh": mesh}, {"partition_spec": spec}):
        on_xla = [xs.mark_sharding(t.detach().to("xla"), mesh, spec).requires_grad_() for t in cast]
        torch_xla.sync()
        q, k, v, ab = on_xla
        options = dict(causal=True, q_segment_ids=marked[0], kv_segment_ids=marked[1], sm_scale=0.5)
        result = kernels.flash_attention(q, k, v, **options, ab=ab, **layout)
        result.square().sum().backward()
        torch_xla.sync()
        assert xs.get_sharding(result).spec[:2] == ("data", "model"), xs.get_sharding(result)
        for ours, theirs in ((result, wanted), *((a.grad, b.grad) for a, b in zip(on_xla, on_cpu))):
            close(ours, theirs, rounding)
q = torch.randn(4, 2, 6, 8)
alone = [q.clone().requires_grad_(), q.to("xla").requires_grad_()]
scores = (alone[0] @ alone[0].mT).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
(scores.softmax(-1) @ alone[0]).square().sum().backward()
config = SplashAttentionConfig(mesh=str(mesh), qkv_partition_spec=spec, segment_ids_partition_spec=("data", None))
splash_attention(alone[1], alone[1], alone[1], config.to_json()).square().sum().backward()
close(alone[1].grad, alone[0].grad, 1e-4)
q = on_xla[0].detach()
for wrong, message in (
    (("data", None, "model", None), "only the batch and the heads"), (("data", "other", None, None), "is not an axis"),
    (("data",), "entries"),
):
    try:
        kernels.flash_attention(q, q, q, partition_spec=wrong, mesh=mesh)
    except ValueError as error:
        assert str(error).startswith("flash_attention: ") and message in str(error), error
    else:
        raise AssertionError(wrong)
print("done")
"""


def test_on_a_mesh_of_four_devices() -> None:
    done = run_script(SPMD, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4", TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
