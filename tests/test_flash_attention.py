"""``flash_attention`` against its definition on the CPU."""

from __future__ import annotations

import pytest
import torch
from helpers import counts

from torch_xla.experimental.custom_kernel import flash_attention


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float) -> torch.Tensor:
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("segments", [False, True])
def test_matches_the_definition(causal: bool, segments: bool) -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    seen = torch.ones(5, 5, dtype=torch.bool).tril() if causal else torch.ones(5, 5, dtype=torch.bool)
    if segments:
        seen = seen & (ids[:, None, :, None] == ids[:, None, None, :])
    on_xla = [t.to("xla") for t in (q, k, v)]
    options = {"q_segment_ids": ids.to("xla"), "kv_segment_ids": ids.to("xla")} if segments else {}
    with counts() as moved:
        result = flash_attention(*on_xla, causal=causal, sm_scale=0.5, **options).cpu()
    torch.testing.assert_close(result, reference(q, k, v, seen, 0.5))
    assert not moved.fallbacks


def test_bias_and_errors() -> None:
    q, k, v, ab = (torch.randn(1, 1, 3, 3).to("xla") for _ in range(4))
    expected = (q @ k.mT + ab).softmax(-1) @ v
    torch.testing.assert_close(flash_attention(q, k, v, ab=ab).cpu(), expected.cpu())
    with pytest.raises(NotImplementedError, match=r"^flash_attention: partition_spec"):
        flash_attention(q, k, v, partition_spec=("data",))
    with pytest.raises(ValueError, match=r"^flash_attention: q_segment_ids and kv_segment_ids"):
        flash_attention(q, k, v, q_segment_ids=ab)
