"""Values and gradients of ``flash_attention``, compared with a reference on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.helpers import counts
from torch_xla.experimental.custom_kernel import FlashAttention, flash_attention

#: name -> (shape of q, length of k, size of v, causal, segments, shape of ab, scale, dtype)
CASES: dict[str, tuple[Any, ...]] = {
    "plain": ((2, 3, 5, 4), 5, 4, False, False, None, 1.0, torch.float32),
    "causal": ((2, 3, 5, 4), 5, 4, True, False, None, 0.5, torch.float32),
    "cross": ((2, 3, 5, 4), 7, 6, True, False, None, 0.5, torch.float32),
    "segments": ((2, 3, 5, 4), 7, 4, False, True, None, 0.5, torch.float32),
    "all options": ((2, 3, 5, 4), 7, 4, True, True, (2, 3, 5, 7), 0.5, torch.float32),
    "one bias for all": ((2, 3, 5, 4), 7, 4, False, False, (1, 1, 5, 7), 0.25, torch.float32),
    "five dimensions": ((2, 2, 3, 5, 4), 7, 4, True, True, (2, 2, 3, 5, 7), 0.5, torch.float32),
    "bfloat16": ((2, 3, 5, 4), 7, 4, True, True, (2, 3, 5, 7), 0.5, torch.bfloat16),
    "float16": ((2, 3, 5, 4), 5, 4, True, False, None, 0.5, torch.float16),
    "float64": ((2, 3, 5, 4), 5, 4, True, False, None, 0.5, torch.float64),
    "empty batch": ((0, 3, 5, 4), 5, 4, True, False, None, 0.5, torch.float32),
    "no keys": ((2, 3, 5, 4), 0, 4, False, True, (2, 3, 5, 0), 0.5, torch.float32),
    "no queries": ((2, 3, 0, 4), 5, 4, True, False, None, 0.5, torch.float32),
}


def reference(
    q: Tensor, k: Tensor, v: Tensor, ab: Tensor | None, ids: list[Tensor] | None, causal: bool, scale: float
) -> Tensor:
    """Compute attention in float64; fully masked rows are zero. The bias is scaled as well, as in jax's kernel."""
    q, k, v = q.double(), k.double(), v.double()
    scores = (q @ k.mT + (0 if ab is None else ab.double())) * scale
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if ids is not None:
        seen = seen & (ids[0][..., None, :, None] == ids[1][..., None, None, :])
    weights = scores.masked_fill(~seen, -1e300).softmax(-1)
    return (weights * seen.any(-1, keepdim=True)) @ v


def _inputs(name: str) -> tuple[list[Tensor], list[Tensor] | None, dict[str, Any]]:
    shape, length, size, causal, segments, bias, scale, dtype = CASES[name]
    keys = (*shape[:-2], length)
    leaves = [torch.randn(shape), torch.randn(*keys, shape[-1]), torch.randn(*keys, size)]
    if bias is not None:
        leaves.append(torch.randn(bias))
    ids = [torch.randint(0, 3, (*shape[:-3], n)).sort().values for n in (shape[-2], length)] if segments else None
    return [t.to(dtype) for t in leaves], ids, {"causal": causal, "sm_scale": scale}


def _call(leaves: list[Tensor], ids: list[Tensor] | None, options: dict[str, Any]) -> Tensor:
    segments = {} if ids is None else {"q_segment_ids": ids[0].to("xla"), "kv_segment_ids": ids[1].to("xla")}
    return flash_attention(*leaves[:3], ab=leaves[3] if len(leaves) > 3 else None, **segments, **options)


@contextmanager
def _blocks(elements: int) -> Iterator[None]:
    from torch_xla._engine.lowering.rules import attention

    before, attention.BLOCK_ELEMENTS = attention.BLOCK_ELEMENTS, elements
    try:
        yield
    finally:
        attention.BLOCK_ELEMENTS = before


@pytest.mark.parametrize("elements", [1 << 26, 64])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, elements: int) -> None:
    leaves, ids, options = _inputs(name)
    on_cpu = [t.detach().requires_grad_() for t in leaves]
    wanted = reference(*on_cpu[:3], on_cpu[3] if len(leaves) > 3 else None, ids, options["causal"], options["sm_scale"])
    weights = torch.randn(wanted.shape, dtype=torch.float64)
    (wanted * weights).sum().backward()
    on_xla = [t.detach().to("xla").requires_grad_() for t in leaves]
    with counts() as moved, _blocks(elements):
        result = _call(on_xla, ids, options)
        (result * weights.to(result.dtype).to("xla")).sum().backward()
        got = [t.cpu() for t in (result, *(leaf.grad for leaf in on_xla))]
    assert not moved.fallbacks and result.dtype == leaves[0].dtype
    rounding = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 1e-5, torch.float64: 1e-10}[result.dtype]
    for ours, theirs in zip(got, (wanted, *(leaf.grad for leaf in on_cpu)), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=rounding, atol=rounding)


def test_compiled_function_and_apply() -> None:
    """The operator's meta function matches its results; the autograd.Function returns the same gradients."""
    leaves, _, options = _inputs("all options")
    ours = [t.to("xla").requires_grad_() for t in leaves]
    traced = [t.to("xla").requires_grad_() for t in leaves]
    applied = [t.to("xla").requires_grad_() for t in leaves]

    def loss(q: Tensor, k: Tensor, v: Tensor, ab: Tensor) -> Tensor:
        return flash_attention(q, k, v, ab=ab, **options).square().sum()

    loss(*ours).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(*traced).backward()
    q, k, v, ab = applied
    FlashAttention.apply(q, k, v, options["causal"], None, None, options["sm_scale"], ab).square().sum().backward()
    for a, b, c in zip(ours, traced, applied, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())
        torch.testing.assert_close(a.grad.cpu(), c.grad.cpu())


def test_inside_pure_functions_and_loops() -> None:
    """Flash attention works inside a pure function and inside the body of a loop."""
    from torch_xla.experimental.assume_pure import assume_pure
    from torch_xla.experimental.scan import scan

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        out = x + flash_attention(x * w, x, x, causal=True, sm_scale=0.5)
        return out, out.sum()

    x, ws = torch.randn(1, 2, 4, 8).to("xla"), torch.randn(3, 8).to("xla")
    ours, pure, theirs = (ws.detach().requires_grad_() for _ in range(3))
    out = wanted = once = x
    called = assume_pure(step)
    for i in range(3):
        wanted = step(wanted, theirs[i])[0]
        once = called(once, pure[i])[0]
    out, _ = scan(step, x, ours)
    for result, leaf in ((wanted, theirs), (once, pure), (out, ours)):
        result.sum().backward()
        torch.testing.assert_close(result.detach().cpu(), wanted.detach().cpu())
        torch.testing.assert_close(leaf.grad.cpu(), theirs.grad.cpu(), rtol=1e-4, atol=1e-5)


def test_upstreams_operator() -> None:
    leaves, _, _ = _inputs("plain")
    ours = [t.to("xla").requires_grad_() for t in leaves]
    theirs = [t.to("xla").requires_grad_() for t in leaves]
    flash_attention(*ours, causal=True).sum().backward()
    torch.ops.xla.flash_attention(*theirs, True).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())


def test_autocast() -> None:
    q, k, v = (t.to("xla") for t in _inputs("plain")[0])
    with torch.autocast("xla", torch.bfloat16):
        assert flash_attention(q, k.bfloat16(), v).dtype == torch.bfloat16


def test_block_sizes_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other block sizes compile another program, although on the CPU the results are the same."""
    from torch_xla.experimental.custom_kernel import _flash_attention

    names = []
    monkeypatch.setattr(_flash_attention.operators, "call", lambda name, *_: names.append(name) or ([], []))
    arguments = (*[None] * 6, True, 1.0, "", "")
    _flash_attention._run(*arguments)
    monkeypatch.setattr(FlashAttention, "DEFAULT_BLOCK_SIZES", {"block_q": 128})
    _flash_attention._run(*arguments)
    assert names[0] == "flash_attention" and names[1] != names[0]


def _q(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape or (1, 2, 3, 4), dtype=dtype, device="xla")


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "on the CPU": (lambda: flash_attention(_q(), _q(), _q().cpu()), TypeError, r"^flash_attention: v is .* on cpu"),
    "rank": (lambda: flash_attention(_q(2, 3, 4), _q(2, 3, 4), _q(2, 3, 4)), ValueError, "must be .batch, heads"),
    "heads": (lambda: flash_attention(_q(), _q(1, 1, 3, 4), _q(1, 1, 3, 4)), ValueError, "repeat_interleave"),
    "dtypes": (lambda: flash_attention(_q(), _q(), _q(dtype=torch.bfloat16)), TypeError, "one floating dtype"),
    "one segment": (lambda: flash_attention(_q(), _q(), _q(), q_segment_ids=_q(1, 3)), ValueError, "or neither"),
    "segments": (
        lambda: flash_attention(_q(), _q(), _q(), q_segment_ids=_q(1, 3), kv_segment_ids=_q(1, 3)),
        ValueError,
        r"q_segment_ids must be integers of shape \[1, 3\]",
    ),
    "bias": (lambda: flash_attention(_q(), _q(), _q(), ab=_q(1, 2, 3, 3) > 0), TypeError, "ab must be of a floating"),
    "mesh": (lambda: flash_attention(_q(), _q(), _q(), mesh=object()), ValueError, "a mesh requires a partition_spec"),
    "no mesh": (
        lambda: flash_attention(_q(), _q(), _q(), partition_spec=("a", None, None, None)),
        ValueError,
        "requires a mesh",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


def test_second_derivative_raises() -> None:
    q = torch.randn(1, 2, 3, 4).to("xla").requires_grad_()
    (grad,) = torch.autograd.grad(flash_attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flash_attention has no second derivative"):
        grad.sum().backward()
