"""Compares the calls of invalid_inputs.py on xla with the CPU: the same exception, or the same values."""

from __future__ import annotations

import gc
from typing import Any

import torch

import torch_xla
from tests.ops import compare, database, tolerances
from tests.ops.invalid_inputs import Call
from tests.ops.outcome import Outcome

Result = tuple[Any, Exception | None]


def check(info: Any, calls: list[Call], outcome: Outcome) -> None:
    """Count the calls that raise an exception of the CPU's type, or return the CPU's values."""
    computed = []
    for call in calls:
        expected, cpu_error = _call(call, "cpu")
        if cpu_error is None and not call.defined:
            continue
        outcome.samples += 1
        got, error = _call(call, "xla")
        if cpu_error is None and error is None:
            computed.append((call, got, expected))
        elif cpu_error is None or error is None or not _same_error(call, cpu_error, error):
            outcome.fail(
                "wrong",
                f"{call.label}: {_describe_error(error)} where the CPU {_describe_error(cpu_error)}",
                call.label,
            )
        else:
            outcome.right += 1
    try:
        torch_xla.sync()
    except Exception as error:
        outcome.fail("wrong", f"fails when it runs: {_describe_error(error)}", "")
        computed.clear()
        gc.collect()  # operations that cannot run must not be pending in the next check
    for call, got, expected in computed:
        _compare(call, got, expected, outcome)
    if outcome.samples and outcome.status == "none":
        outcome.status = "right"


def _call(call: Call, device: str) -> Result:
    torch.manual_seed(0)
    try:
        return call.run(device), None
    except Exception as error:
        return None, error.with_traceback(None)


def _same_error(call: Call, cpu_error: Exception, error: Exception) -> bool:
    # The CPU call has a tensor of the device meta, for which torch raises other exceptions.
    return type(error) is type(cpu_error) or ("another device" in call.label and isinstance(error, RuntimeError))


def _describe_error(error: Exception | None) -> str:
    return f"raises {type(error).__name__} ({str(error)[:100]})" if error else "computes"


def _compare(call: Call, got: Any, expected: Any, outcome: Outcome) -> None:
    defined = database.ops()[outcome.op].name not in database.RANDOM | database.AMBIGUOUS
    try:
        limits = tolerances.limits_of(outcome.op, outcome.dtype, "out")
        compare.assert_same(got, expected, values=defined, limits=limits)
    except AssertionError as error:
        outcome.fail("wrong", f"{call.label}: {error}", call.label)
    else:
        outcome.right += 1
