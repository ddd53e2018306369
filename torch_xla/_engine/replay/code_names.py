"""The variables that the code of a function uses, with the functions defined in it but those that are skipped."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator

#: Instructions that use the value of a cell. Others only pass the cell to a function that is defined inside.
_CELL_USES = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF", "DELETE_DEREF"})


def _inner_codes(code: types.CodeType, skipped: frozenset[types.CodeType]) -> Iterator[types.CodeType]:
    return (inner for inner in code.co_consts if isinstance(inner, types.CodeType) and inner not in skipped)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType, skipped: frozenset[types.CodeType]) -> frozenset[str]:
    """Return the names of globals and attributes in the code.

    Names with an @ are left out: pytest puts them into assert statements, and its session is reached from there.
    """
    inner = (names_in(found, skipped) for found in _inner_codes(code, skipped))
    return frozenset(name for name in code.co_names if not name.startswith("@")).union(*inner)


@functools.lru_cache(maxsize=4096)
def cells_in(code: types.CodeType, skipped: frozenset[types.CodeType]) -> frozenset[str]:
    """Return the names of the variables of enclosing functions that the code uses."""
    if not skipped:
        return frozenset(code.co_freevars)
    own = {step.argval for step in dis.get_instructions(code) if step.opname in _CELL_USES}
    inner = (cells_in(found, skipped) for found in _inner_codes(code, skipped))
    return frozenset(own.union(*inner)) & frozenset(code.co_freevars)
