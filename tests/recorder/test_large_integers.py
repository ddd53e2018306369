"""Integers from 2**63 on as numbers of operations: results and errors of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.base.settings import settings

LARGE = 2**63 + 3072  # exact in float64

CASES: dict[str, Callable[[str], torch.Tensor]] = {
    "add float32": lambda d: torch.zeros(2, device=d) + LARGE,
    "rsub float64": lambda d: LARGE - torch.ones(2, device=d, dtype=torch.double),
    "add int64": lambda d: torch.ones(2, device=d, dtype=torch.long) + LARGE,
    "add int8": lambda d: torch.ones(2, device=d, dtype=torch.int8) + LARGE,
    "remainder int64": lambda d: torch.ones(2, device=d, dtype=torch.long).remainder(LARGE),
    "pow": lambda d: torch.ones(2, device=d).pow(LARGE),
    "less float32": lambda d: torch.zeros(2, device=d) < LARGE,
    "less int64": lambda d: torch.zeros(2, device=d, dtype=torch.long) < LARGE,
    "clamp": lambda d: torch.zeros(2, device=d).clamp(max=LARGE),
    "where": lambda d: torch.where(torch.ones(2, device=d, dtype=torch.bool), LARGE, 0.0),
    "fill_ float32": lambda d: torch.zeros(2, device=d).fill_(LARGE),
    "full uint64": lambda d: torch.full((2,), 2**64 - 1, device=d, dtype=torch.uint64),
    "full float32": lambda d: torch.full((2,), LARGE, device=d, dtype=torch.float),
    "full_like": lambda d: torch.full_like(torch.zeros(2, device=d), LARGE),
    "masked_fill": lambda d: torch.zeros(2, device=d).masked_fill(torch.ones(2, device=d, dtype=torch.bool), LARGE),
    "addcmul": lambda d: torch.addcmul(*[torch.ones(2, device=d)] * 3, value=LARGE),  # type: ignore[call-overload]
    "foreach": lambda d: torch.stack(list(torch._foreach_add([torch.ones(2, device=d)] * 2, LARGE))),  # type: ignore[call-overload]
    "foreach list": lambda d: torch.stack(list(torch._foreach_mul([torch.ones(2, device=d)] * 2, [LARGE, 2]))),  # type: ignore[call-overload]
}

ERRORS: dict[str, Callable[[str], torch.Tensor]] = {
    "fill_ int64": lambda d: torch.zeros(2, device=d, dtype=torch.long).fill_(LARGE),
    "full": lambda d: torch.full((2,), LARGE, device=d),
    "add bool": lambda d: torch.ones(2, device=d, dtype=torch.bool) + LARGE,
}


@pytest.mark.parametrize("policy", ["compile", "eager"])
def test_results_of_the_cpu(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", policy)
    found = {name: case("xla") for name, case in CASES.items()}
    torch_xla.sync()
    for name, value in found.items():
        torch.testing.assert_close(value.cpu(), CASES[name]("cpu"), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_cpu(name: str) -> None:
    raised: list[Any] = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as error:
            ERRORS[name](device)
        raised.append(str(error.value))
    assert raised[1].startswith(raised[0])
