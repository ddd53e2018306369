"""Cache keys for the Python callbacks of a jax function, which its StableHLO only refers to by index.

pure_callback(f), pure_callback(g)    equal StableHLO, different keys: f and g
debug.print("a {}")                   the format string, compared by value
debug.callback(f)                     jax wraps f again in each trace, so each trace has a different key
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import jax.extend.core as jax_core

from torch_xla._engine.base import host_calls
from torch_xla._engine.capture.constant_keys import nested_jaxprs
from torch_xla._engine.capture.object_keys import SameObject

#: The size assumed for a function with callbacks: the memory that a callback retains cannot be measured.
CALLBACK_BYTES = 1 << 20


def callback_key(closed: jax_core.ClosedJaxpr, text: str) -> Hashable:
    """Return the key of what a function's StableHLO ``text`` does not contain; None if the text is complete."""
    calls = host_calls.count_python_calls(text)
    if not calls:
        return None
    found = tuple(_opaque_equations(closed))
    # A primitive calls Python, and its parameters do not name the callable: the function only equals itself.
    return found if len(found) >= calls else SameObject(closed)


def is_ordered(text: str) -> bool:
    """Whether a function's StableHLO takes tokens, which order callbacks across programs."""
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
