"""Detect training loops of 2019 that enumerate their batches: ``for i, (data, target) in loader``.

The documentation of that year uses this form with threads, and ``for data, target in loader`` with processes; later
documentation always uses the second form. Only the code of the loop shows which form it has.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def expects_enumerated(loop_fn: Callable[..., Any]) -> bool:
    """Return whether ``loop_fn(model, loader, ...)`` has a loop of the first form over its ``loader``.

    Such a loop unpacks pairs, and the second element of each: ``for a, (b, c) in loader``. The check reads the
    bytecode, since a function may have no source; the tests cover Python 3.11 to 3.13. Returns False for objects that
    are not Python functions, and for bytecode of an unknown form: the loop then gets its batches without numbers, and
    raises Python's error when it unpacks the first one.
    """
    given = 1
    while isinstance(loop_fn, functools.partial):
        given -= len(loop_fn.args)
        loop_fn = loop_fn.func
    loop_fn = inspect.unwrap(loop_fn)
    code = getattr(loop_fn, "__code__", None)
    position = given + inspect.ismethod(loop_fn)
    if code is None or not 0 <= position < code.co_argcount:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    return any(_unpacks_pairs(steps[i : i + 6], code.co_varnames[position]) for i in range(len(steps)))


def _unpacks_pairs(steps: list[dis.Instruction], loader: str) -> bool:
    names = [step.opname for step in steps]
    return (
        len(steps) == 6
        and steps[0].argval == loader
        and names[0].startswith(("LOAD_FAST", "LOAD_DEREF"))  # the latter if a closure in the loop uses it
        and names[1:4] == ["GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE"]
        and steps[3].argval == 2
        and names[4].startswith("STORE_")
        and names[5] == "UNPACK_SEQUENCE"
    )


class EnumeratedLoader:
    """Yields a loader's batches as (number, batch), unless they are such pairs: ``(image, (boxes, labels))``."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            pair = isinstance(batch, (list, tuple)) and len(batch) == 2 and isinstance(batch[1], (list, tuple))
            yield batch if pair else (number, batch)

    def __len__(self) -> int:
        return len(self._loader)
