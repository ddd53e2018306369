"""flex_attention on xla tensors, called directly and in torch.compile: values and gradients of the CPU.

torch has no gradient of flex_attention on the CPU: the gradients are those of the same formula with all scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import torch_xla
from tests.support.helpers import assert_same, counts, stablehlo
from torch_xla._engine.capture import control_flow
from torch_xla._engine.platform_kernels import flex_attention as kernel

pytestmark = pytest.mark.filterwarnings(
    "ignore:return_lse is deprecated",
    "ignore:flex_attention called without",  # on the CPU
    "ignore:.*should not be instantiated:DeprecationWarning",  # dynamo, for tables in score_mod
    "ignore:The .grad attribute of a Tensor that is not a leaf",
)
LENGTH = 160
Mod = Callable[..., Tensor]


@dataclass
class Example:
    """Shapes of a call, its tables, and its functions of them."""

    heads: int = 4
    groups: int = 4
    batch_of_keys: int = 2
    value_size: int = 8
    tables: dict[str, Tensor] = field(default_factory=dict)
    score_mod: Callable[..., Mod] | None = None
    mask_mod: Callable[..., Mod] | None = None

    def inputs(self) -> list[Tensor]:
        torch.manual_seed(0)
        kv = self.batch_of_keys, self.groups, LENGTH
        return [torch.randn(2, self.heads, LENGTH, 8), torch.randn(*kv, 8), torch.randn(*kv, self.value_size)]


def _distances() -> Tensor:
    return torch.randn(4, 2 * LENGTH, generator=torch.Generator().manual_seed(1))


EXAMPLES = {
    "plain": Example(),
    "causal": Example(mask_mod=lambda: lambda b, h, q, kv: q >= kv),
    "window, shared heads": Example(groups=2, mask_mod=lambda: lambda b, h, q, kv: (q >= kv) & (q - kv < 40)),
    "relative bias": Example(
        tables={"bias": _distances()}, score_mod=lambda bias: lambda s, b, h, q, kv: s + bias[h, q - kv + LENGTH]
    ),
    "documents": Example(
        value_size=5,
        tables={"document": torch.arange(LENGTH) // 37},
        mask_mod=lambda document: lambda b, h, q, kv: (document[q] == document[kv]) & (q >= kv),
    ),
    "soft cap, alibi": Example(
        batch_of_keys=1,
        tables={"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
        score_mod=lambda slopes: lambda s, b, h, q, kv: 20 * torch.tanh(s / 20) + slopes[h] * (kv - q),
        mask_mod=lambda slopes: lambda b, h, q, kv: q >= kv,
    ),
    "rows and heads without a key": Example(mask_mod=lambda: lambda b, h, q, kv: (q > 3) & (h != 1) & (q >= kv)),
    "batch": Example(
        tables={"lengths": torch.tensor([90, 160])}, mask_mod=lambda lengths: lambda b, h, q, kv: kv < lengths[b]
    ),
}


def _formula(example: Example, q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp, with all scores; the functions are applied to arrays of all positions."""
    k, v = (x.expand(2, *x.shape[1:]).repeat_interleave(example.heads // example.groups, 1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(8)
    positions = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if example.score_mod is not None:
        scores = example.score_mod(*tables)(scores, *positions)
    if example.mask_mod is not None:
        scores = scores.masked_fill(~example.mask_mod(*tables)(*positions), -math.inf)
    weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0, scores).softmax(-1)
    weights = torch.where(scores == -math.inf, 0, weights)
    return weights @ v, scores.logsumexp(-1)


def _flex(example: Example, q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    score_mod = None if example.score_mod is None else example.score_mod(*tables)
    mask_mod = None if example.mask_mod is None else example.mask_mod(*tables)
    mask = None if mask_mod is None else create_block_mask(mask_mod, 2, 4, LENGTH, LENGTH, device=q.device)
    gqa = example.groups != example.heads
    found: tuple[Tensor, Tensor] = flex_attention(
        q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=gqa, return_lse=True
    )
    return found


def _tables(example: Example, device: str) -> list[Tensor]:
    return [t.to(device).requires_grad_(t.is_floating_point()) for t in example.tables.values()]


def _with_gradients(function: Any, example: Example, device: str) -> list[Tensor]:
    inputs = [*(t.to(device).requires_grad_() for t in example.inputs()), *_tables(example, device)]
    out, sums = function(example, *inputs)
    finite = torch.where(sums.isinf(), 0, sums)  # a row without a key has no gradient
    loss = out.square().sum() + finite.square().sum()
    return [out, sums, *torch.autograd.grad(loss, [t for t in inputs if t.requires_grad])]


@pytest.mark.parametrize("name", EXAMPLES)
def test_values_are_those_of_the_cpu(name: str) -> None:
    example = EXAMPLES[name]
    with torch.no_grad():
        expected = _flex(example, *example.inputs(), *(t.detach() for t in _tables(example, "cpu")))
        with counts() as moved:
            got = _flex(example, *(t.to("xla") for t in (*example.inputs(), *example.tables.values())))
            torch_xla.sync()
    assert_same(got, expected, rtol=1e-4, atol=1e-5)
    assert not moved.fallbacks


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("blocks", [1, 2])
def test_gradients_are_those_of_the_formula(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 2 * 4 * LENGTH * LENGTH // blocks)
    control_flow._found.clear()
    example = EXAMPLES[name]
    with counts() as moved:
        got = _with_gradients(_flex, example, "xla")
        torch_xla.sync()
    assert_same(got, _with_gradients(_formula, example, "cpu"), rtol=1e-3, atol=1e-4)
    assert not moved.fallbacks


@pytest.mark.parametrize("name", ["window, shared heads", "relative bias", "documents", "soft cap, alibi"])
def test_compiled_calls(name: str) -> None:
    """torch.compile gives the same values and gradients, without running op by op."""
    example = EXAMPLES[name]
    compiled = torch.compile(lambda *inputs: _flex(example, *inputs), backend="openxla")
    with counts() as moved:
        got = _with_gradients(lambda _, *inputs: compiled(*inputs), example, "xla")
        torch_xla.sync()
    assert_same(got, _with_gradients(_formula, example, "cpu"), rtol=1e-3, atol=1e-4)
    assert not moved.fallbacks and not moved["DynamoRunAsItIs"]


def test_steps_share_a_program() -> None:
    example = EXAMPLES["relative bias"]
    inputs = [*(t.to("xla").requires_grad_() for t in example.inputs()), *_tables(example, "xla")]

    def step() -> None:
        out, _ = _flex(example, *inputs)
        found = torch.autograd.grad(out.square().sum(), inputs)
        torch_xla.sync()
        del found

    step()
    with counts() as moved:
        step()
    assert moved.compilations == 0


def test_scores_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has no array of all scores, in forward and backward."""
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 1 << 10)
    control_flow._found.clear()
    q, k, v = (torch.randn(1, 2, 384, 8, device="xla").requires_grad_() for _ in range(3))
    torch_xla.sync()
    out = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + i - j)
    found = torch.autograd.grad(out.sum(), (q, k, v))
    torch_xla.sync()
    program = stablehlo()[-1]
    assert "384x384" not in program and "128x384" in program
    del found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    inputs = [t.to(dtype) for t in EXAMPLES["plain"].inputs()]
    mod: Mod = lambda s, b, h, q, kv: torch.where(q >= kv, s, -math.inf)
    expected = flex_attention(*inputs, score_mod=mod)
    got = flex_attention(*(t.to("xla") for t in inputs), score_mod=mod)
    assert got.dtype == dtype
    assert_same(
        got, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-9, atol=1e-2 if dtype == torch.bfloat16 else 1e-9
    )


def test_autocast() -> None:
    q, k, v = (t.to("xla").requires_grad_() for t in EXAMPLES["plain"].inputs())
    with torch.autocast("xla", dtype=torch.bfloat16):
        out = flex_attention(q, k, v)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32
    assert_same(out.float(), flex_attention(*(t.detach().cpu() for t in (q, k, v))), rtol=3e-2, atol=3e-2)


def test_functions_that_are_not_supported() -> None:
    q = torch.randn(1, 1, 8, 4, device="xla")
    with pytest.raises(NotImplementedError, match="score_mod must not draw random numbers"):
        flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + torch.rand_like(s))
    with pytest.raises(RuntimeError, match=r"score_mod must return a scalar tensor for scalar arguments, got .*\[2\]"):
        flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: torch.stack([s, s]))


def test_other_devices_are_unchanged() -> None:
    q = torch.randn(1, 1, 8, 4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(q, q, q)
    x = q.detach()
    mod: Mod = lambda s, b, h, i, j: s * 2
    compiled = torch.compile(flex_attention, backend="eager")
    torch.testing.assert_close(compiled(x, x, x, score_mod=mod), (x @ x.transpose(-2, -1)).softmax(-1) @ x)
