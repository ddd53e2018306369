"""Functions of math and numpy that read a traced number in C, where the number cannot notice it.

While a step is recorded they are replaced: in the modules, and wherever the step holds one by name (``from math import
sqrt``). A function that computes a float gives a traced number, ``sqrt`` of an expression; any other makes the value of
the number a condition, as int() does. Calls without a traced number are those of the original.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from torch_xla._engine.replay.traced_number import TracedNumber, compute_traced

_FLOAT_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "gamma", "hypot", "lgamma", "log", "log10", "log1p", "log2", "pow",
    "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_NUMPY_FUNCTIONS = ("arange", "array", "asanyarray", "asarray", "ascontiguousarray", "full", "full_like", "linspace")

#: Where an object holds a function: (dictionary, key), or (cell, None).
Holder = tuple[Any, Any]


def _plain(value: Any) -> Any:
    if isinstance(value, TracedNumber):
        return value.escape()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _has_traced(values: Iterable[Any]) -> bool:
    return any(
        isinstance(value, TracedNumber) or (type(value) in (list, tuple) and _has_traced(value)) for value in values
    )


def _replacement(function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _has_traced(args) and not _has_traced(kwargs.values()):
            return function(*args, **kwargs)
        if name is not None and not kwargs:
            found = compute_traced(f"math.{name}", args, function(*args))
            if found is not None:
                return found
        return function(*map(_plain, args), **{key: _plain(value) for key, value in kwargs.items()})

    return call


def _replacements() -> dict[int, tuple[Any, Callable[..., Any]]]:
    found = {}
    for key, function in vars(math).items():
        if callable(function) and not key.startswith("__"):
            found[id(function)] = function, _replacement(function, key if key in _FLOAT_FUNCTIONS else None)
    for key in _NUMPY_FUNCTIONS:
        function = getattr(np, key)
        found[id(function)] = function, _replacement(function, None)
    return found


_REPLACEMENTS = _replacements()  # by the id of the original, which is in the value


def is_replaced(function: Any) -> bool:
    """Return whether ``traced_calls`` replaces a function."""
    return id(function) in _REPLACEMENTS


def _assign(holder: Holder, value: Any) -> None:
    container, key = holder
    if key is None:
        container.cell_contents = value
    else:
        container[key] = value


@contextmanager
def traced_calls(holders: Iterable[Holder]) -> Iterator[None]:
    """Replace the functions of math and numpy in the block. ``holders``: what else refers to one of them."""
    assigned: list[tuple[Holder, Any]] = []
    places = [(vars(math), key) for key in list(vars(math))] + [(vars(np), key) for key in _NUMPY_FUNCTIONS]
    try:
        for container, key in [*places, *holders]:
            before = container.cell_contents if key is None else container[key]
            found = _REPLACEMENTS.get(id(before))
            if found is not None:
                assigned.append(((container, key), before))
                _assign((container, key), found[1])
        yield
    finally:
        for holder, before in assigned:
            _assign(holder, before)
