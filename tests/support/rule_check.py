"""Compares a lowering rule with the same operator on the CPU, without the recorder.

    check("aten::add.Tensor", torch.ones(2), torch.ones(2), alpha=2)

Adds the schema's defaults, makes non-baked Scalars program inputs (as the recorder does), jits, and compares.
Compiling is most of the work, so the cases of one test share a program; an error names the line of the case.
Rules that may call CPU kernels (lowering/cpu_kernel_call.py) are checked twice: with XLA's code, and with the kernels.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.base.settings import settings
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.lowering import RULES, cpu_kernel_call
from torch_xla._engine.lowering.apply_rule import apply_rule
from torch_xla._engine.lowering.registry import LoweringRuleContext, ScalarOperand

_NUMERIC = ("number", "Optional[number]", "Tensor")
_WIDEST = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def overload(name: str) -> Any:
    namespace, rest = name.split("::")
    packet, _, ov = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), ov or "default")


def to_array(t: torch.Tensor) -> jax.Array:
    t = t.detach().contiguous().resolve_conj().resolve_neg()
    if t.dtype == torch.bfloat16:
        return jnp.asarray(t.view(torch.int16).numpy().view(dtypes.storage_numpy_dtype(t.dtype)))
    return jnp.asarray(t.numpy())


def to_tensor(x: jax.Array) -> torch.Tensor:
    x = np.array(x)
    dtype = dtypes.torch_dtype_of_storage(x.dtype)
    if dtype == torch.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(dtype)
    return torch.from_numpy(x)


@dataclass
class Case:
    """One call of a rule: its arguments as program inputs, and the CPU's results."""

    name: str
    arguments: list[Any]
    leaves: list[jax.Array]
    expected: list[Any]
    limits: dict[str, float | None]
    where: str = ""

    def apply(self, leaves: list[jax.Array]) -> Any:
        """Apply the rule to the leaves, which are traced."""
        rule = RULES[self.name]
        outs = [(tuple(t.shape), t.dtype) if t is not None else ((), None) for t in self.expected]
        seed = jnp.array([1, 2], jnp.uint32) if rule.random else None
        try:
            return apply_rule(
                rule, [_substitute(a, leaves) for a in self.arguments], outs, LoweringRuleContext(self.name, outs, seed)
            )
        except Exception as error:
            error.add_note(self.where)
            raise

    def compare(self, got: list[Any]) -> None:
        """Raise AssertionError if values, dtypes or shapes differ from the CPU's."""
        for e, g in zip(self.expected, got, strict=True):
            if e is None or g is None:
                assert e is g or g is None, f"{self.where}: None mismatch"
                continue
            message = lambda text: f"{self.where}: {text}"
            torch.testing.assert_close(g, e, **self.limits, equal_nan=True, check_stride=False, msg=message)


def _substitute(spec: Any, leaves: list[jax.Array]) -> Any:
    if spec[0] == "leaf":
        return leaves[spec[1]]
    if spec[0] == "list":
        return [_substitute(item, leaves) for item in spec[1]]
    if spec[0] == "number":
        return ScalarOperand(leaves[spec[1]], spec[2])
    return spec[1]


def _clone(value: Any) -> Any:
    if isinstance(value, list):
        return [_clone(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _case(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], limits: dict[str, float | None]) -> Case:
    op, rule = overload(name), RULES[name]
    full = [
        (a, args[i] if i < len(args) else kwargs.get(a.name, a.default_value))
        for i, a in enumerate(op._schema.arguments)
    ]
    positional = [_clone(v) for a, v in full if not a.kwarg_only]
    keyword = {a.name: _clone(v) for a, v in full if a.kwarg_only}
    leaves: list[jax.Array] = []

    def spec(a: Any, v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            leaves.append(to_array(v.clone()))
            return ("leaf", len(leaves) - 1)
        if isinstance(v, (list, tuple)) and any(isinstance(w, torch.Tensor) for w in v):
            return ("list", [spec(a, w) for w in v])
        number = type(v) in (bool, int, float, complex)
        number = number and ("Scalar" in str(a.real_type) or str(a.real_type) in _NUMERIC)
        if number and a.name not in rule.static_args and v not in (0, 1, -1):
            leaves.append(jnp.asarray(v, _WIDEST[type(v)]))
            return ("number", len(leaves) - 1, type(v))
        return ("const", v)

    return Case(name, [spec(a, v) for a, v in full], leaves, flat(op(*positional, **keyword)), limits)


def _format_argument(value: Any) -> str:
    """Format an argument for an error: tensors by dtype and shape, others by repr."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_argument, value))}]"
    return repr(value)


def _calling_line() -> str:
    """Return the line of the test that calls check, also through functions of its file."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_name.startswith("test_"):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "no test"


@contextmanager
def _record_kernel_requests() -> Iterator[list[bool]]:
    """Record in the block whether a rule asks for CPU kernels (cpu_kernel_call.py)."""
    asked: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernel_call, "is_profitable", lambda work, least: asked.append(True) or False)
        yield asked


def _results_with_cpu_kernels(cases: list[Case]) -> list[list[Any]]:
    """Return the results of the rules with CPU kernels for any amount of work."""
    assert library.load_library() is not None
    with pytest.MonkeyPatch.context() as patch, cpu_kernel_call.cpu_kernels_enabled():
        patch.setattr(cpu_kernel_call, "is_profitable", lambda work, least: True)
        return _results(cases)


def _results(cases: list[Case]) -> list[list[Any]]:
    """Return the results of the rules of all cases, computed by one program: compile time dominates."""
    program = jax.jit(lambda leaves: [case.apply(xs) for case, xs in zip(cases, leaves, strict=True)])
    found = program([case.leaves for case in cases])
    return [[to_tensor(g) if g is not None else None for g in got] for got in found]


def run(name: str, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Return (expected from the CPU, got from the rule), both flat lists of tensors (or None)."""
    case = _case(name, args, kwargs, {})
    return case.expected, _results([case])[0]


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in flat(item)]
    return [result]


_TOGETHER = 32  #: cases per program
#: Called with the cases of each program after the comparison; see compile_for_targets.py.
also: Callable[[list[Case]], None] | None = None
_waiting: list[Case] | None = None


@contextmanager
def together() -> Iterator[None]:
    """Collect the cases that are checked in the block, and run them in few programs when it ends without an error."""
    global _waiting
    _waiting = []
    try:
        yield
        _run_waiting()
    finally:
        _waiting = None


def _run_waiting() -> None:
    assert _waiting is not None
    cases = _waiting[:]
    _waiting.clear()
    if cases:
        with jax.enable_x64(True), _record_kernel_requests() as asked:
            found = {"": _results(cases)}
        if asked and settings.TORCH_XLA_CPU_KERNELS:  # no kernels if they are disabled
            with jax.enable_x64(True):
                found["with CPU kernels, "] = _results_with_cpu_kernels(cases)
        differences = []
        for way, results in found.items():
            for case, got in zip(cases, results, strict=True):
                try:
                    case.compare(got)
                except AssertionError as error:
                    differences.append(f"{way}{error}")
        assert not differences, "\n\n".join(differences)
        if also is not None:
            also(cases)


def check(name: str, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Raise AssertionError if the rule's values, dtypes or shapes differ from the CPU's.

    Inside ``together`` it does so when the block ends; each test of lowering/ is such a block (see its conftest.py).
    """
    with jax.enable_x64(True):
        case = _case(name, args, kwargs, {"rtol": rtol, "atol": atol})
    arguments = ", ".join(map(_format_argument, (*args, *kwargs.items())))
    case.where = f"{name}({arguments}), checked at {_calling_line()}"
    if _waiting is None:
        with jax.enable_x64(True):
            case.compare(_results([case])[0])
        return
    _waiting.append(case)
    if len(_waiting) == _TOGETHER:
        _run_waiting()


def batches(cases: Sequence[tuple[Any, ...]], size: int = _TOGETHER) -> list[Any]:
    """Return parameters for a test that checks many cases, whose first entries are names, in several programs."""
    parts = [cases[start : start + size] for start in range(0, len(cases), size)]
    return [pytest.param(part, id=",".join(dict.fromkeys(case[0] for case in part))) for part in parts]


def each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like pytest.mark.parametrize, but one test runs all values, so that their cases are compiled in one program."""
    names = [names] if isinstance(names, str) else list(names)
    rows = [(value,) if len(names) == 1 else value for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_of_them(**arguments: Any) -> None:
            for row in rows:
                test(**arguments, **dict(zip(names, row, strict=True)))

        kept = [p for p in inspect.signature(test).parameters.values() if p.name not in names]
        all_of_them.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return all_of_them

    return decorate
