"""Make ``torch.manual_seed`` seed xla devices.

torch has no hook for third-party device types, so ``torch.manual_seed`` and ``torch.random.manual_seed`` are wrapped.
The recorder also detects a generator that is seeded directly, unless the seed is the one that it had.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.compat import imported_names

MASK = (1 << 64) - 1


def seed_all(seed: int) -> None:
    """Set the random state of every possible xla device from one seed; equal seeds give equal numbers."""
    recorder.bindings().set_all_seeds(seed & MASK)


def patch_manual_seed() -> None:
    """Wrap torch.manual_seed, once."""
    original: Callable[[Any], torch.Generator] = torch.random.manual_seed
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def manual_seed(seed: Any) -> torch.Generator:
        generator = original(seed)
        seed_all(int(seed))
        return generator

    manual_seed._torch_xla = True  # type: ignore[attr-defined]
    torch.random.manual_seed = torch.manual_seed = manual_seed
    imported_names.add_replacement(original, manual_seed)
    if torch.initial_seed() != torch.Generator().initial_seed():  # seeded before torch_xla was imported
        seed_all(torch.initial_seed())
