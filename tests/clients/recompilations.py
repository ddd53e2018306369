"""New graphs and explained recompilations of a library's steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

import torch_xla
from tests.support.helpers import counts

Messages = Callable[[], list[str]]


def losses_of(step: Callable[[int], float | torch.Tensor], count: int) -> tuple[list[float], int]:
    """The losses of all steps, and how many new graphs there were from the fifth one on."""

    def run(first: int, last: int) -> list[float]:
        found = []
        for number in range(first, last):
            loss = step(number)
            torch_xla.sync()
            found.append(float(loss))
        return found

    losses = run(0, 4)
    with counts() as moved:
        losses += run(4, count)
    return losses, moved["UncachedSyncTensors"] + moved["InterpretedGraphs"]
