"""Cache keys for Python objects: by identity (weak or strong reference) or by value.

Functions are referenced weakly, so that a cache does not keep the values alive that they close over.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable
from typing import Any

from torch_xla._engine.base.lru_cache import LruCache


class SameObject:
    """An object compared by identity; holds a reference, so that its id is not reused."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


class ByValue:
    """An object compared by value, with the hash that it had at first: a mutated object stays findable in a table.

    Raises TypeError for an object without a hash.
    """

    def __init__(self, value: Any) -> None:
        self._value, self._hash = value, hash(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByValue) or self._hash != other._hash:
            return False
        return type(self._value) is type(other._value) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return self._hash


class WeakIdentity:
    """An object compared by identity through a weak reference.

    After the object's death the key is only equal to itself: another object may have the same id, so two keys compare
    their referents.
    """

    def __init__(self, value: Any) -> None:
        self._ref, self._hash = weakref.ref(value, _note_death), id(value)

    @property
    def is_dead(self) -> bool:
        return self._ref() is None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        value = self._ref()
        return isinstance(other, WeakIdentity) and value is not None and value is other._ref()

    def __hash__(self) -> int:
        return self._hash


_deaths = 0
_removed_at: weakref.WeakKeyDictionary[LruCache[Any], int] = weakref.WeakKeyDictionary()


def _note_death(_: object) -> None:
    global _deaths  # may run at any point of any code: only count; remove_dead() cleans the tables later
    _deaths += 1


def identity(function: Any) -> Hashable:
    """Return the first part of a key for a function: by value if its class defines equality, else by identity."""
    if isinstance(function, types.MethodType):
        owner, code = identity_of(function.__self__), identity_of(function.__func__)
        return _Method((owner, code))
    return ByValue(function) if _is_compared_by_value(function) else identity_of(function)


def _is_compared_by_value(function: Any) -> bool:
    kind: Any = type(function)
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def identity_of(value: Any) -> Hashable:
    """Return an identity key of an object: weak if its type supports weak references."""
    try:
        return WeakIdentity(value)
    except TypeError:
        return SameObject(value)


class _Method(tuple[Hashable, Hashable]):
    """A bound method: the identities of its object and its function."""

    __slots__ = ()


def _is_dead(key: Hashable) -> bool:
    who = key[0] if type(key) is tuple and key else None
    parts = who if isinstance(who, _Method) else (who,)
    return any(isinstance(part, WeakIdentity) and part.is_dead for part in parts)


def remove_dead(cache: LruCache[Any]) -> None:
    """Remove the items whose function has died."""
    seen = _deaths
    if _removed_at.get(cache, 0) != seen:
        _removed_at[cache] = seen
        cache.remove(_is_dead)
