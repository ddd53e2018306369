"""Training loops of 2019, which take their batches with a number: ``for i, (data, target) in loader``.

The documents of that year write the loop so with threads, and ``for data, target in loader`` with processes; since
then both are written the second way. Nothing but the loop itself says which one it is.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def expects_enumerated(loop_fn: Callable[..., Any]) -> bool:
    """Whether ``loop_fn(model, loader, ...)`` has a loop of the first kind over its ``loader``.

    That is one which takes pairs and takes the second of each apart: ``for a, (b, c) in loader``. It is looked for in
    the bytecode, as a function may have no source; the tests hold Python 3.11 to 3.13 against each other. False for
    what is not a Python function, and where another Python compiles such a loop to something else: the loop then gets
    its batches without numbers, and ends with Python's own error when it takes the first one apart.
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
        and names[0].startswith(("LOAD_FAST", "LOAD_DEREF"))  # the latter where a closure in the loop uses it, too
        and names[1:4] == ["GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE"]
        and steps[3].argval == 2
        and names[4].startswith("STORE_")
        and names[5] == "UNPACK_SEQUENCE"
    )


class EnumeratedLoader:
    """A loader's batches as (number, batch), where a batch is not such a pair itself: ``(image, (boxes, labels))``."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            pair = isinstance(batch, (list, tuple)) and len(batch) == 2 and isinstance(batch[1], (list, tuple))
            yield batch if pair else (number, batch)

    def __len__(self) -> int:
        return len(self._loader)
