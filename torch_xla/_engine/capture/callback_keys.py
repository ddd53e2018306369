"""Callbacks into Python as a part of a jax function's identity: StableHLO has an index in place of each.

pure_callback(f), pure_callback(g)    the same text, other keys: f and g
debug.print("a {}")                   its format, by value
debug.callback(f)                     jax wraps f again in each trace, so each trace has a different key
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import jax.extend.core as jax_core

from torch_xla._engine.base import host_calls
from torch_xla._engine.capture.constant_keys import nested_jaxprs
from torch_xla._engine.capture.object_keys import SameObject

#: The bytes that a function with callbacks counts as: what callbacks hold cannot be measured.
CALLBACK_BYTES = 1 << 20


def callback_key(closed: jax_core.ClosedJaxpr, text: str) -> Hashable:
    """Return what a function's StableHLO ``text`` does not say of it; None where the text says all."""
    calls = host_calls.count_python_calls(text)
    if not calls:
        return None
    found = tuple(_opaque_equations(closed))
    # Some primitive calls Python and its parameters do not say what: then the function equals itself only.
    return found if len(found) >= calls else SameObject(closed)


def is_ordered(text: str) -> bool:
    """Whether a function's StableHLO takes tokens, by which jax keeps the order of callbacks across programs."""
    return "jax.token = true" in text


def _opaque_equations(jaxpr: Any) -> Iterator[Hashable]:
    for equation in jaxpr.eqns:
        nested = list(nested_jaxprs(equation.params))
        for inner in nested:
            yield from _opaque_equations(inner)
        if not nested and (equation.effects or any(map(_is_callable, equation.params.values()))):
            params = tuple((name, _hashable(value)) for name, value in sorted(equation.params.items()))
            yield equation.primitive.name, params


def _is_callable(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return SameObject(value)
    return value  # type: ignore[no-any-return]
