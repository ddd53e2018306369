"""Rules of loss functions and their gradients, compared with the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

from tests.support.rule_check import check, each
from torch_xla._engine.lowering.rules import loss

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2
REDUCTIONS = [NONE, MEAN, SUM]
LOOSE = {"rtol": 2e-2, "atol": 2e-2}

ELEMENTWISE = [
    ("huber_loss", (1.0,)),
    ("huber_loss", (0.3,)),
    ("mse_loss", ()),
    ("smooth_l1_loss", (1.0,)),
    ("smooth_l1_loss", (0.0,)),
    ("smooth_l1_loss", (0.4,)),
    ("soft_margin_loss", ()),
]


@each(("name", "constants"), ELEMENTWISE)
@each("reduction", REDUCTIONS)
@each("dtype", [torch.float32, torch.bfloat16])
def test_elementwise(name: str, constants: tuple, reduction: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype).round()
    loose = LOOSE if dtype == torch.bfloat16 else {}
    check(f"aten::{name}", x, y, reduction, *constants, **loose)
    grad = torch.randn_like(getattr(aten, name)(x, y, reduction, *constants))
    check(f"aten::{name}_backward", grad, x, y, reduction, *constants, **loose)


# torch's backward kernel resizes its result if the inputs broadcast.
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_elementwise_broadcast_promotion_and_0d() -> None:
    x, y = torch.randn(4, 1), torch.randn(5)
    for reduction in REDUCTIONS:
        check("aten::mse_loss", x, y, reduction)
        check("aten::mse_loss", x, y.double(), reduction)
        check("aten::smooth_l1_loss", x[0, 0], y[0], reduction)
        check("aten::mse_loss_backward", torch.randn(4, 5) if reduction == NONE else x[0, 0], x, y, reduction)


@each("reduction", REDUCTIONS)
@each("weighted", [False, True])
def test_binary_cross_entropy(reduction: int, weighted: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    x[0, 0], x[0, 1], y[0, 0] = 0, 1, 1
    w = torch.rand(4, 5) if weighted else None
    check("aten::binary_cross_entropy", x, y, w, reduction)
    grad = torch.randn(4, 5) if reduction == NONE else torch.randn(())
    check("aten::binary_cross_entropy_backward", grad, x, y, w, reduction)
    check("aten::binary_cross_entropy", x.bfloat16(), y.bfloat16(), None, reduction, **LOOSE)
    z = torch.randn(4, 5) * 30
    pos = torch.rand(5) * 3 if weighted else None
    check("aten::binary_cross_entropy_with_logits", z, y, w, pos, reduction)
    check(
        "aten::binary_cross_entropy_with_logits",
        z.bfloat16(),
        y.bfloat16(),
        None,
        None,
        reduction,
        rtol=5e-2,
        atol=5e-2,
    )


NLL = [("nll_loss", (6, 5)), ("nll_loss", (5,)), ("nll_loss2d", (2, 5, 3, 4))]


@each(("name", "shape"), NLL)
@each("reduction", REDUCTIONS)
@each("weighted", [False, True])
@each("dtype", [torch.float32, torch.bfloat16])
def test_nll(name: str, shape: tuple[int, ...], reduction: int, weighted: bool, dtype: torch.dtype) -> None:
    check_nll(name, shape, reduction, weighted, dtype)


def check_nll(name: str, shape: tuple[int, ...], reduction: int, weighted: bool, dtype: torch.dtype) -> None:
    """Check forward and backward, with and without ignored targets."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype)
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    w = torch.rand(5).to(dtype) if weighted else None
    loose = LOOSE if dtype == torch.bfloat16 else {}
    for ignore in (-100, 2, int(target.reshape(-1)[0])):
        args = x, target, w, reduction, ignore
        check(f"aten::{name}_forward", *args, **loose)
        out, total = getattr(aten, f"{name}_forward")(*args)
        check(f"aten::{name}_backward", torch.randn_like(out), *args, total, **loose)


def test_nll_ignores_negative_targets_and_empty_batches() -> None:
    x, target = torch.randn(4, 3), torch.tensor([-100, 1, -100, 2])
    check("aten::nll_loss_forward", x, target, torch.rand(3), MEAN, -100)
    check("aten::nll_loss_forward", x, torch.full((4,), -100), None, MEAN, -100)
    check("aten::nll_loss_forward", x[:0], target[:0], None, SUM, -100)


@each(("name", "shape"), NLL)
def test_nll_as_on_a_tpu(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for TPUs returns the same values, compiled for this machine."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, **others: others.get("tpu", default)(*args))
    check_nll(name, shape, MEAN, True, torch.float32)
    check_nll(name, shape, NONE, False, torch.bfloat16)
    x = torch.randn(shape)
    x[..., 0] = -torch.inf  # a probability of 0, of targets and of other classes
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    check(f"aten::{name}_forward", x, target, None, SUM, -100)


@each("place", ["tpu", "cpu", "cuda"])
def test_nll_uses_no_gather_on_a_tpu(place: str) -> None:
    """libtpu writes the operand of a gather to HBM, which would retain all log-probabilities until backward."""
    x, target = jax.ShapeDtypeStruct((64, 1000), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.int32)
    traced = jax.jit(lambda x, target: loss._gather_targets(x, target, 1)).trace(x, target)
    text = traced.lower(lowering_platforms=(place,)).as_text()
    assert ("stablehlo.gather" in text) == (place != "tpu"), text


@each("place", ["tpu", "cpu"])
@each("target", [-1, 3, 7])
def test_invalid_class_is_nan(place: str, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid class results in NaN, as programs do not check indices."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, **others: others.get(place, default)(*args))
    assert jnp.isnan(loss._gather_targets(jnp.ones((1, 3)), jnp.array([target]), 1)).all()


@each("reduction", REDUCTIONS)
@each("rows", [True, False])
@each("p", [1, 2])
def test_multi_margin(reduction: int, rows: bool, p: int) -> None:
    torch.manual_seed(0)
    x, target = (torch.randn(4, 5), torch.randint(0, 5, (4,))) if rows else (torch.randn(5), torch.tensor(3))
    for weight in (None, torch.rand(5)):
        args = x, target, p, 0.7, weight, reduction
        check("aten::multi_margin_loss", *args)
        grad = torch.randn_like(aten.multi_margin_loss(*args))
        check("aten::multi_margin_loss_backward", grad, *args)


@each("reduction", REDUCTIONS)
@each("rows", [True, False])
def test_multilabel_margin(reduction: int, rows: bool) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(3, 4), torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3]])
    x, target = (x, target) if rows else (x[0], target[0])
    check("aten::multilabel_margin_loss_forward", x, target, reduction)
    out, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
    check("aten::multilabel_margin_loss_backward", torch.randn_like(out), x, target, reduction, is_target)
