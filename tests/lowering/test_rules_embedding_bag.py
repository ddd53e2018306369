"""Rules of embedding_bag and its gradients, compared with the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.helpers import counts

INDICES = torch.tensor([1, 2, 2, 5, 0, 2, 4])
OFFSETS = torch.tensor([0, 3, 3, 4])  # the second bag is empty

CASES: dict[str, dict[str, object]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "weighted": {"mode": "sum", "per_sample_weights": torch.linspace(-1, 2, 7)},
    "padding": {"mode": "mean", "padding_idx": 2},
    "padding of a sum": {"mode": "sum", "padding_idx": 2, "per_sample_weights": torch.linspace(-1, 2, 7)},
    "padding of a maximum": {"mode": "max", "padding_idx": 2},
    "last offset": {"mode": "mean", "include_last_offset": True, "offsets": torch.tensor([0, 3, 3, 7])},
    "rows": {"mode": "max", "input": INDICES[:6].reshape(2, 3), "offsets": None},
    "of 32-bit indices": {"mode": "sum", "input": INDICES.int(), "offsets": OFFSETS.int()},
}


def _run(device: str, dtype: torch.dtype, options: dict[str, object]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(6, 3).to(device, dtype).requires_grad_()
    given = {"input": INDICES, "offsets": OFFSETS} | options
    given = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in given.items()}
    leaves = [weight]
    if "per_sample_weights" in given:
        given["per_sample_weights"] = given["per_sample_weights"].to(dtype).detach().requires_grad_()
        leaves.append(given["per_sample_weights"])
    out = F.embedding_bag(weight=weight, **given)
    pull = torch.linspace(1, 2, out.numel(), device=device).reshape(out.shape).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * pull).sum(), leaves)]


@pytest.mark.parametrize("name", list(CASES))
def test_bags(name: str) -> None:
    with counts() as moved:
        got = _run("xla", torch.float32, CASES[name])
    assert not moved.fallbacks
    for g, e in zip(got, _run("cpu", torch.float32, CASES[name]), strict=True):
        torch.testing.assert_close(g.cpu(), e)


def test_bags_in_16_bits() -> None:
    for g, e in zip(_run("xla", torch.bfloat16, CASES["mean"]), _run("cpu", torch.float32, CASES["mean"]), strict=True):
        torch.testing.assert_close(g.cpu().float(), e, rtol=2e-2, atol=2e-2)


def test_without_a_gradient() -> None:
    weight = torch.randn(6, 3)
    with torch.no_grad():
        got = F.embedding_bag(INDICES.to("xla"), weight.to("xla"), OFFSETS.to("xla"), mode="max")
    torch.testing.assert_close(got.cpu(), F.embedding_bag(INDICES, weight, OFFSETS, mode="max"))


def test_gradients_scaled_by_frequency() -> None:
    # the CPU kernel of torch 2.13 divides by the count of another index; documented is the count of the row
    scaled = _run("xla", torch.float32, {"mode": "mean", "scale_grad_by_freq": True})[1].cpu()
    plain = _run("cpu", torch.float32, {"mode": "mean"})[1]
    torch.testing.assert_close(scaled, plain / INDICES.bincount(minlength=6).clamp(min=1)[:, None])
