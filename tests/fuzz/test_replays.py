"""A sample of tests/fuzz/replays.py: each model once, each optimizer at least once."""

from __future__ import annotations

import pytest

import torch_xla.debug.metrics as met
from tests.fuzz import interrupts, replays
from torch_xla._engine.compilation import bucketed_program

PAIRS = [("MLP", "Adagrad"), ("LeNet", "SGD"), ("ResNet", "RMSprop"), ("GPT", "AdamW"), ("ViT", "AdamW")]


@pytest.mark.parametrize(("model", "optimizer"), PAIRS)
def test_captured_training_is_equal_bit_by_bit(model: str, optimizer: str) -> None:
    """Twelve steps, of which at least eight are replayed."""
    assert replays.compare(model, optimizer, 12) >= 8


@pytest.mark.parametrize("read_before", [False, True])
def test_interrupts_of_captured_steps(read_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every seventh event of a replayed step, which has buckets."""
    monkeypatch.setattr(bucketed_program, "LEAST_ARRAYS", 1)
    fills = met.counter_value("BucketFills") or 0
    assert interrupts.in_captured_steps(stride=7, read_before=read_before) > 10
    assert (met.counter_value("BucketFills") or 0) >= fills + 10
