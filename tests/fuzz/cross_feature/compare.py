"""How far xla may be from the CPU, and what of the CPU is not defined."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.fuzz.cross_feature.machine import Machine

#: How far results may be apart: sums in another order.
CLOSE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.complex64: 1e-4}
DOUBLE = 1e-9


class Roundings:
    """How far what is in each memory of the CPU may be from xla's: what was rounded once keeps that in a wide dtype."""

    def __init__(self, cpu: Machine) -> None:
        self._cpu, self._of = cpu, dict[int, float]()

    def of(self, x: Tensor) -> float:
        return max(self._of.get(x.untyped_storage().data_ptr(), DOUBLE), CLOSE.get(x.dtype, DOUBLE))

    def step_done(self, operands: list[Tensor]) -> None:
        """Any of them may have been written to, and what was made last may be of all of them."""
        touched = [*operands, self._cpu.pool[-1]]
        worst = max(map(self.of, touched))
        self._of |= {x.untyped_storage().data_ptr(): worst for x in touched}


class Orders:
    """Track the CPU storages that operators with noncontiguous results allocated.

    Strides of operator results are unspecified on xla, so values read from them in memory order are undefined.
    """

    def __init__(self, cpu: Machine) -> None:
        self._cpu = cpu
        self._contiguous = dict[int, tuple[torch.UntypedStorage, bool]]()  # kept, so that no other gets the address

    def step_done(self) -> None:
        for x in self._cpu.pool:
            memory = x.untyped_storage()
            self._contiguous.setdefault(memory.data_ptr(), (memory, x.is_contiguous()))

    def are_said(self, x: Tensor) -> bool:
        return self._contiguous.get(x.untyped_storage().data_ptr(), (None, True))[1]


def reads_bits(cpu: Machine, xla: Machine, operand: Tensor | None = None) -> bool:
    """Whether bits of floats that are equal up to rounding, and no further, are shown as numbers of another kind."""
    shown = [*cpu.pool, *([] if operand is None else [operand])]
    for mine, theirs in zip(xla.pool, cpu.pool, strict=False):
        if mine.shape != theirs.shape or not (theirs.is_floating_point() or theirs.is_complex()):
            continue
        memory = theirs.untyped_storage().data_ptr()
        others = [
            x for x in shown if x.untyped_storage().data_ptr() == memory and x.dtype.to_real() != theirs.dtype.to_real()
        ]
        if (others or operand is theirs) and readable(theirs):
            a, b = (t.detach().cpu().resolve_conj().resolve_neg() for t in (mine, theirs))
            # What is contiguous may have any stride where it has one element, and then no bits are seen of it: a clone.
            bits = [t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b)]
            if not torch.equal(*bits):
                return equal(a, b, CLOSE.get(b.dtype, 1e-4))
    return False


def overlaps(x: Tensor) -> bool:
    """Whether elements of a tensor of the CPU share their place."""
    if x.numel() < 2:
        return False
    places = sum(torch.arange(n).mul(step).reshape([-1] + [1] * (x.dim() - 1 - d))
                 for d, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)))  # fmt: skip
    return len(torch.as_tensor(places).unique()) < x.numel()


def readable(x: Tensor) -> bool:
    """Whether autograd lets a tensor be read: not so a view of inference mode whose base was written to outside."""
    try:
        x.clone()
    except RuntimeError:
        return False
    return True


def equal(got: Tensor, expected: Tensor, close: float) -> bool:
    got, expected = (t.detach().resolve_conj().resolve_neg() for t in (got, expected))
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(got, expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    return torch.allclose(got.to(wide), expected.to(wide), rtol=close, atol=close, equal_nan=True)
