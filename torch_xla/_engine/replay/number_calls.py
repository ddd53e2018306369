"""Functions of math, numpy, struct and others that read a traced number in C, where the number cannot notice it.

While a step is recorded they are replaced: in the modules, and wherever the step holds one by name (``from math import
sqrt``). A function that computes a float gives a traced number, ``sqrt`` of an expression; any other makes the value of
the number a condition, as int() does. Calls without a traced number are those of the original.
"""

from __future__ import annotations

import array
import decimal
import functools
import json
import math
import statistics
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from torch_xla._engine.replay.traced_number import compute_traced, escape_all, has_traced
from torch_xla._engine.replay.type_calls import STRUCT, StructCalls, TypeCalls

_FLOAT_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "gamma", "hypot", "lgamma", "log", "log10", "log1p", "log2", "pow",
    "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_ITERABLE_FUNCTIONS = ("dist", "fsum", "sumprod")  # read the items of any iterable
_FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    np: (
        "arange", "array", "asanyarray", "asarray", "ascontiguousarray", "format_float_positional",
        "format_float_scientific", "full", "full_like", "linspace",
    ),
    struct: ("pack", "pack_into"),
}  # fmt: skip
_TYPES: dict[ModuleType, str] = {array: "array", decimal: "Decimal", struct: "Struct"}
_ENCODER_METHODS = ("encode", "iterencode")  # of JSONEncoder; json.dump and json.dumps call them
_MODULES = (math, statistics, *_FUNCTIONS, *_TYPES)  # statistics imports functions of math by name

#: Where an object holds a function: (dictionary, key), (class, name), or (cell, None).
Holder = tuple[Any, Any]


def _replace_function(function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Return a function that reads the traced numbers among its arguments. ``name``: if its results are floats."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not has_traced(args) and not has_traced(kwargs.values()):
            return function(*args, **kwargs)
        if name is not None and not kwargs:
            found = compute_traced(f"math.{name}", args, function(*args))
            if found is not None:
                return found
        return function(*map(escape_all, args), **{key: escape_all(value) for key, value in kwargs.items()})

    return call


def _replace_iterable_function(function: Callable[..., Any]) -> Callable[..., Any]:
    replaced = _replace_function(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return replaced(*(list(value) if isinstance(value, Iterable) else value for value in args))

    return call


def _replacements() -> dict[int, tuple[Any, Any]]:
    found: dict[int, tuple[Any, Any]] = {}
    for key, function in vars(math).items():
        if key in _ITERABLE_FUNCTIONS:
            found[id(function)] = function, _replace_iterable_function(function)
        elif callable(function) and not key.startswith("__"):
            found[id(function)] = function, _replace_function(function, key if key in _FLOAT_FUNCTIONS else None)
    functions = [getattr(module, key) for module, keys in _FUNCTIONS.items() for key in keys]
    functions += [vars(json.JSONEncoder)[key] for key in _ENCODER_METHODS]
    for function in functions:
        found[id(function)] = function, _replace_function(function)
    for module, key in _TYPES.items():
        original = getattr(module, key)
        found[id(original)] = original, TypeCalls(original)
    return found


_REPLACEMENTS = _replacements()  # by the id of the original, which is in the value
_ORIGINALS = {id(replaced): original for original, replaced in _REPLACEMENTS.values()}


def is_replaced(value: Any) -> bool:
    """Return whether ``traced_calls`` replaces a function, a type, or an instance."""
    return id(value) in _REPLACEMENTS or type(value) is STRUCT


def _replacement_of(value: Any) -> Any:
    """Return what replaces a value; None if nothing does."""
    if type(value) is STRUCT:
        return StructCalls(value)
    return _REPLACEMENTS.get(id(value), (None, None))[1]


def _places() -> list[Holder]:
    found: list[Holder] = [(vars(module), key) for module in _MODULES for key in list(vars(module))]
    return [*found, *((json.JSONEncoder, key) for key in _ENCODER_METHODS)]


def read_holder(holder: Holder) -> Any:
    container, key = holder
    if key is None:
        return container.cell_contents
    if isinstance(container, dict | list):
        return container[key]
    return vars(container)[key] if isinstance(container, type) else getattr(container, key)


def assign_holder(holder: Holder, value: Any) -> None:
    container, key = holder
    if key is None:
        container.cell_contents = value
    elif isinstance(container, dict | list):
        container[key] = value
    else:
        setattr(container, key, value)


def _restore_imports(modules: Iterable[str]) -> None:
    """Restore the originals in modules that were imported by the step."""
    for name in modules:
        names = getattr(sys.modules.get(name), "__dict__", {})
        for key, value in list(names.items()):
            if id(value) in _ORIGINALS:
                names[key] = _ORIGINALS[id(value)]


@contextmanager
def traced_calls(holders: Iterable[Holder]) -> Iterator[None]:
    """Replace the functions and types in the block. ``holders``: what else refers to one of them."""
    assigned: list[tuple[Holder, Any]] = []
    loaded = set(sys.modules)
    try:
        for holder in [*_places(), *holders]:
            before = read_holder(holder)
            found = _replacement_of(before)
            if found is not None:
                assigned.append((holder, before))
                assign_holder(holder, found)
        yield
    finally:
        for holder, before in assigned:
            assign_holder(holder, before)
        _restore_imports(sys.modules.keys() - loaded)
