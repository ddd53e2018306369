"""Types of C whose constructors read a traced number, and the objects that take their place while a step is recorded.

The replacement makes instances of the original, which is also what ``isinstance`` and a class statement take it for.
``type(value) is Decimal`` is False in a recording.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from torch_xla._engine.replay.traced_number import escape_all

STRUCT = struct.Struct  # which the module does not have while a step is recorded


def _read_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(escape_all, args), **{key: escape_all(value) for key, value in kwargs.items()})

    return call


class TypeCalls:
    """Calls a type, or one of its class methods, with plain numbers. Immutable; one for each type, in number_calls."""

    def __init__(self, original: type) -> None:
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = _read_numbers(self._original)(*args, **kwargs)
        return StructCalls(found) if type(found) is STRUCT else found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._original, name)
        return _read_numbers(found) if callable(found) else found

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance.original if type(instance) is StructCalls else instance, self._original)

    def __subclasscheck__(self, subclass: Any) -> bool:
        return subclass is self or issubclass(subclass, self._original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._original,)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)


class StructCalls:
    """A struct.Struct that packs plain numbers. Made for one recording, for each Struct that the step refers to."""

    def __init__(self, original: struct.Struct) -> None:
        self.original = original
        self.pack = _read_numbers(original.pack)
        self.pack_into = _read_numbers(original.pack_into)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)
