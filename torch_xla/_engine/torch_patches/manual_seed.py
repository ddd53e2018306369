"""Makes ``torch.manual_seed`` seed xla devices too.

torch offers no hook for a device type that is not its own, so ``torch.manual_seed`` and ``torch.random.manual_seed``
are wrapped. (A generator that is seeded directly is noticed by the recorder as well,
unless it gets the seed it had.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine import recorder

MASK = (1 << 64) - 1


def seed_all(seed: int) -> None:
    """Sets the random state of every possible xla device from one seed; equal seeds give equal numbers."""
    recorder.bindings().set_all_seeds(seed & MASK)


def patch_manual_seed() -> None:
    """Wraps torch.manual_seed, once."""
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
