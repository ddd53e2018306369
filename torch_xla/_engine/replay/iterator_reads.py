"""Notices which of Python's own iterators a recorded step reads: a replay would not advance them.

An iterator of a user's class changes its attributes, which ``object_guards`` compares. Generators and the iterators of
builtins and itertools show no state: while the step is recorded, what holds one of them holds an object that passes
each call on to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_xla._engine.replay import number_calls

_MODULES = "builtins", "itertools"


def is_plain_iterator(value: Any) -> bool:
    """Whether a value is a generator, or an iterator of a builtin type or of itertools."""
    return isinstance(value, Iterator) and type(value).__module__ in _MODULES


class _WatchedIterator:
    """Passes calls on to an iterator, and adds its name to ``read`` when it is advanced."""

    def __init__(self, iterator: Iterator[Any], name: str, read: list[str]) -> None:
        self._iterator, self._name, self._read = iterator, name, read

    def __iter__(self) -> _WatchedIterator:
        return self

    def __next__(self) -> Any:
        self._read.append(self._name)
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:  # send, throw and close of a generator
        self._read.append(self._name)
        return getattr(self._iterator, name)


@contextmanager
def watch_iterators(holders: Iterable[tuple[number_calls.Holder, str]]) -> Iterator[list[str]]:
    """Yield a list to which the names of iterators are added that the block reads.

    Args:
      holders: what refers to an iterator, and the name that a message gives it.
    """
    read: list[str] = []
    replaced: list[tuple[number_calls.Holder, Any, _WatchedIterator]] = []
    try:
        for holder, name in holders:
            iterator = number_calls.read_holder(holder)
            watched = _WatchedIterator(iterator, name, read)
            number_calls.assign_holder(holder, watched)
            replaced.append((holder, iterator, watched))
        yield read
    finally:
        for holder, iterator, watched in replaced:
            if number_calls.read_holder(holder) is watched:
                number_calls.assign_holder(holder, iterator)
