"""A sample of tests/fuzz/replays.py: each model once, each optimizer at least once."""

from __future__ import annotations

import pytest

from tests.fuzz import interrupts, replays

PAIRS = [("MLP", "Adagrad"), ("LeNet", "SGD"), ("ResNet", "RMSprop"), ("GPT", "AdamW"), ("ViT", "AdamW")]


@pytest.mark.parametrize(("model", "optimizer"), PAIRS)
def test_captured_training_is_equal_bit_by_bit(model: str, optimizer: str) -> None:
    """Twelve steps, of which at least eight are replayed."""
    assert replays.compare(model, optimizer, 12) >= 8


def test_interrupts_of_captured_steps() -> None:
    """At every seventh event of a replayed step."""
    assert interrupts.in_captured_steps(stride=7) > 10
