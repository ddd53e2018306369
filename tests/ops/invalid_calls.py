"""Checks the calls of invalid_inputs.py on xla against the CPU: the same exception, or the same values."""

from __future__ import annotations

import gc
from typing import Any

import torch

import torch_xla
from tests.ops import compare, database, tolerances
from tests.ops.invalid_inputs import Call
from tests.ops.outcome import Outcome

Answer = tuple[Any, Exception | None]


def check(info: Any, calls: list[Call], outcome: Outcome) -> None:
    """Notes how many calls are refused by an exception of the CPU's type, or give the CPU's values."""
    computed = []
    for call in calls:
        expected, refusal = _answer(call, "cpu")
        if refusal is None and not call.defined:
            continue
        outcome.samples += 1
        got, error = _answer(call, "xla")
        if refusal is None and error is None:
            computed.append((call, got, expected))
        elif refusal is None or error is None or not _alike(call, refusal, error):
            outcome.fail("wrong", f"{call.label}: {_said(error)} where the CPU {_said(refusal)}", call.label)
        else:
            outcome.right += 1
    try:
        torch_xla.sync()
    except Exception as error:
        outcome.fail("wrong", f"fails when it runs: {_said(error)}", "")
        computed.clear()
        gc.collect()  # what cannot be run must not be pending when the next one is
    for call, got, expected in computed:
        _compare(call, got, expected, outcome)
    if outcome.samples and outcome.status == "none":
        outcome.status = "right"


def _answer(call: Call, device: str) -> Answer:
    torch.manual_seed(0)
    try:
        return call.run(device), None
    except Exception as error:
        return None, error.with_traceback(None)


def _alike(call: Call, refusal: Exception, error: Exception) -> bool:
    # The CPU is asked with a tensor of the device meta, for which it has exceptions of its own.
    return type(error) is type(refusal) or ("another device" in call.label and isinstance(error, RuntimeError))


def _said(error: Exception | None) -> str:
    return f"raises {type(error).__name__} ({str(error)[:100]})" if error else "computes"


def _compare(call: Call, got: Any, expected: Any, outcome: Outcome) -> None:
    defined = database.ops()[outcome.op].name not in database.RANDOM | database.AMBIGUOUS
    try:
        limits = tolerances.of(outcome.op, outcome.dtype, "out")
        compare.assert_same(got, expected, values=defined, limits=limits)
    except AssertionError as error:
        outcome.fail("wrong", f"{call.label}: {error}", call.label)
    else:
        outcome.right += 1
