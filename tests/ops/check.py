"""Compares one operator, dtype and kind on xla with the CPU, in this process."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import torch_xla
from tests.ops import compare, database, invalid_calls, invalid_inputs, tolerances
from tests.ops.kinds import Case, cases, gather_indexed
from tests.ops.outcome import Outcome
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.lowering import decompose

READING = "aten::_local_scalar_dense"
#: Samples that share a program: some operators have thousands, and compile time grows faster than linearly.
SAMPLES_PER_PROGRAM = 64


@dataclass(slots=True)
class _Pair:
    case: Case
    expected: Any  # of the CPU
    got: Any = None
    exact: Any = None  # of the CPU in float64, for operators of database.FLOAT64_REFERENCE


def check(name: str, dtype: torch.dtype, kind: str, limit: int) -> Outcome:
    """Run the first ``limit`` samples (0: all). Records the exceptions of the operator and raises none of them."""
    outcome = Outcome(name, str(dtype).removeprefix("torch."), kind)
    start, info = time.perf_counter(), database.ops()[name]
    with warnings.catch_warnings(), _record_ops(outcome):
        warnings.simplefilter("ignore")
        if kind in invalid_inputs.KINDS:
            invalid_calls.check(info, list(invalid_inputs.calls(info, dtype, kind)), outcome)
        elif kind == "errors":
            _check_errors(cases(info, dtype, kind, limit), outcome)
        else:
            _check_values(cases(info, dtype, kind, limit), outcome)
    outcome.seconds = round(time.perf_counter() - start, 2)
    program_cache.cache.clear()
    return outcome


@contextmanager
def _record_ops(outcome: Outcome) -> Iterator[None]:
    """Record which ops fall back to the CPU and which are decomposed in the block."""
    before, seen, original = metrics.counters(), set[str](), decompose.decomposition_rule

    def function(op: str) -> Any:
        seen.add(op)
        return original(op)

    decompose.decomposition_rule = function
    try:
        yield
    finally:
        decompose.decomposition_rule = original
        moved = {op for op, n in metrics.counters().items() if metrics.is_fallback(op) and n != before.get(op, 0)}
        outcome.cpu, outcome.decomposed = tuple(sorted(moved - {READING})), tuple(sorted(seen))


def _check_values(found: list[Case], outcome: Outcome) -> None:
    for start in range(0, len(found), SAMPLES_PER_PROGRAM):
        exact = outcome.op in database.FLOAT64_REFERENCE and outcome.dtype == "float32"
        some = found[start : start + SAMPLES_PER_PROGRAM]
        pairs = [pair for case in some if (pair := _expected(case, exact)) is not None]
        outcome.samples += len(pairs)
        _check_in_one_program(pairs, outcome)
    if outcome.samples and outcome.status == "none":
        outcome.status = "right"


def _check_in_one_program(pairs: list[_Pair], outcome: Outcome) -> None:
    recorded = [pair for pair in pairs if _record(pair, outcome)]
    # One program for all samples; only if it fails does each run separately, to find the sample that fails.
    if _run() is not None:
        for pair in recorded:
            pair.got = None
        recorded = [pair for pair in recorded if _record(pair, outcome) and _run_separately(pair, outcome)]
    for pair in recorded:
        _compare(pair, outcome)


def _expected(case: Case, exact: bool) -> _Pair | None:
    """Run the case on the CPU, with ``exact`` in float64 as well; return None if it raises."""
    try:
        torch.manual_seed(0)
        pair = _Pair(case, case.run("cpu"))
    except Exception:
        return None
    if exact:
        pair.exact = case.run_in_float64()
    return pair


def _record(pair: _Pair, outcome: Outcome) -> bool:
    try:
        torch.manual_seed(0)
        pair.got = pair.case.run("xla")
    except Exception as error:
        outcome.fail("error", f"{type(error).__name__}: {error}", pair.case.label)
        del error
        return False
    return True


def _run() -> str | None:
    """Run the pending graph; return the error as text, or None. Holds no reference to the failed values."""
    try:
        torch_xla.sync()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _run_separately(pair: _Pair, outcome: Outcome) -> bool:
    message = _run()
    if message is not None:
        outcome.fail("error", message, pair.case.label)
        pair.got = None
        gc.collect()
    return message is None


def _compare(pair: _Pair, outcome: Outcome) -> None:
    info = database.ops()[outcome.op]
    try:
        values = info.name not in database.RANDOM and not _is_random(pair)
        process = _process(info, pair.case, outcome.kind)
        limits = tolerances.limits_of(outcome.op, outcome.dtype, outcome.kind)
        expected = pair.expected if pair.exact is None else pair.exact
        compare.assert_same(pair.got, expected, values=values, process=process, limits=limits)
    except AssertionError as error:
        outcome.fail("wrong", str(error), pair.case.label)
    except Exception as error:
        outcome.fail("error", f"{type(error).__name__}: {error}", pair.case.label)
    else:
        outcome.right += 1


def _process(info: Any, case: Case, kind: str) -> Callable[[Any], Any] | None:
    """Return a function that reduces a result to its unambiguous part."""
    if kind == "grad":
        return None
    if info.name in database.TIES:
        found = lambda result: gather_indexed(info, case.sample, result)
        return (lambda result: (found(result[0]), found(result[1]), result[2])) if kind == "out" else found
    if info.name not in database.AMBIGUOUS:
        return None
    return (lambda result: case.process(result[0])) if kind == "out" else case.process


def _is_random(pair: _Pair) -> bool:
    """Return whether the CPU returns other values with other seeds. Tries five: few random bits may agree by chance."""
    try:
        for seed in range(1, 6):
            torch.manual_seed(seed)
            compare.assert_same(pair.case.run("cpu"), pair.expected, device="cpu")
    except AssertionError:
        return True
    return False


def _check_errors(found: list[Case], outcome: Outcome) -> None:
    for case in found:
        expected = _raised(case, "cpu")
        if expected is None:
            continue
        outcome.samples += 1
        got = _raised(case, "xla")
        if got is not None and got[0] == expected[0]:
            outcome.right += 1
        else:
            actual = f"raises {got[0]} ({got[1]})" if got else "raises nothing"
            outcome.fail("wrong", f"{actual} where the CPU raises {expected[0]} ({expected[1]})", case.label)
    if outcome.samples and outcome.status == "none":
        outcome.status = "right"


def _raised(case: Case, device: str) -> tuple[str, str] | None:
    """Return type name and beginning of the exception that the case raises when it is recorded or run."""
    try:
        result = case.run(device)
    except Exception as error:
        return type(error).__name__, str(error)[:100]
    if device == "cpu":
        return None
    try:
        torch_xla.sync()
    except Exception as error:
        found = type(error).__name__, str(error)[:100]
    else:
        return None
    finally:
        del result
    gc.collect()  # operations that cannot run must not be pending in the next check
    return found
