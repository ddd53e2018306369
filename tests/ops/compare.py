"""Compares results of xla with those of the CPU: structure, types, shapes and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils import _pytree


@dataclass(frozen=True, slots=True)
class Limits:
    """Tolerances: ``rtol`` of each element, None for torch.testing's own; the absolute tolerance is the largest of
    torch.testing's atol, ``atol``, and ``scale`` times the largest finite value of the result.
    """

    rtol: float | None = None
    scale: float = 0.0
    atol: float = 0.0


TORCHS_OWN = Limits()


def assert_same(
    got: Any,
    expected: Any,
    *,
    device: str = "xla",
    values: bool = True,
    process: Callable[[Any], Any] | None = None,
    limits: Limits = TORCHS_OWN,
) -> None:
    """Raise AssertionError for a difference. ``process`` reduces both to their unambiguous part."""
    _assert_structure(got, expected, device)
    if not values:
        return
    got = _pytree.tree_map(_to_cpu, got)
    if process is not None:
        got, expected = process(got), process(expected)
    for number, (g, e) in enumerate(zip(_pytree.tree_leaves(got), _pytree.tree_leaves(expected), strict=True)):
        if isinstance(e, torch.Tensor):
            _assert_close(number, g.detach(), e.detach(), limits)
        elif isinstance(e, float):
            assert g == e or g != g or abs(g - e) <= 1e-5 * abs(e), f"result {number} is {g}, not {e}"
        else:
            assert g == e or isinstance(e, torch.device), f"result {number} is {g!r}, not {e!r}"


def _assert_close(number: int, got: torch.Tensor, expected: torch.Tensor, limits: Limits) -> None:
    rtol, atol = default_tolerances(expected)
    if expected.numel() and (expected.is_floating_point() or expected.is_complex()):
        atol = max(atol, limits.atol, limits.scale * float(expected.abs().nan_to_num(0, 0, 0).max()))
    torch.testing.assert_close(
        got.resolve_conj().resolve_neg(),
        expected.resolve_conj().resolve_neg(),
        rtol=rtol if limits.rtol is None else limits.rtol,
        atol=atol,
        equal_nan=True,
        check_stride=False,
        msg=lambda text: f"result {number}: {' '.join(text.split())}",
    )


def _to_cpu(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf


def _assert_structure(got: Any, expected: Any, device: str) -> None:
    gots, expecteds = _pytree.tree_leaves(got), _pytree.tree_leaves(expected)
    assert len(gots) == len(expecteds), f"{len(gots)} results, not {len(expecteds)}"
    for number, (g, e) in enumerate(zip(gots, expecteds, strict=True)):
        assert type(g) is type(e), f"result {number} is of type {type(g).__name__}, not {type(e).__name__}"
        if not isinstance(e, torch.Tensor):
            continue
        assert g.dtype == e.dtype, f"result {number} is {g.dtype}, not {e.dtype}"
        assert g.shape == e.shape, f"result {number} has the shape {tuple(g.shape)}, not {tuple(e.shape)}"
        assert g.device.type == device, f"result {number} is on {g.device}, not {device}"
