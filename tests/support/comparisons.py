"""Comparisons of device tensors with expected values, after one sync."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla


class Comparisons:
    """Pairs of a device tensor and its expected value; leaving the context runs the graph and compares them all.

    A read of a single pending tensor compiles and runs a separate program. Owns copies, so that a test may use the
    tensors again.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor, dict[str, float]]] = []

    def add(self, got: torch.Tensor, expected: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> None:
        """Compare ``got`` as it is now with ``expected``, of equal shape and dtype."""
        self._pairs.append((got.detach().clone(), expected.detach().clone(), {"rtol": rtol, "atol": atol}))

    def __enter__(self) -> Comparisons:
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            return
        torch_xla.sync()
        assert self._pairs, "nothing was compared"
        for number, (got, expected, tolerance) in enumerate(self._pairs):
            torch.testing.assert_close(got.cpu(), expected, **tolerance, msg=lambda m, n=number: f"pair {n}: {m}")
