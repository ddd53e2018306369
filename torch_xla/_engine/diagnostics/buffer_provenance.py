"""What made a buffer, and where. A buffer carries a number; this table says what it stands for.

The table grows by one row for each pair of a kind and a line of the user's program, and lives as long as the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock


@dataclass(frozen=True, slots=True)
class Provenance:
    """``kind``: upload, result (of a program), transfer, or unknown; ``line``: the user's line, "" where unknown."""

    kind: str
    line: str


UNKNOWN = Provenance("unknown", "")

_lock = fork_safe_lock()
_numbers: dict[tuple[str, str], int] = {("unknown", ""): 0}
#: Scripts have fewer lines than that; notebooks that run for months, and make a file of each cell, may not.
_MOST = 1 << 16
_rows: list[Provenance] = [UNKNOWN]


def provenance_id(kind: str, line: str) -> int:
    """The number of a provenance; 0 (unknown) when there are too many."""
    found = _numbers.get((kind, line))
    if found is not None:
        return found
    with _lock:
        if len(_rows) == _MOST:
            return 0
        found = _numbers.setdefault((kind, line), len(_rows))
        if found == len(_rows):
            _rows.append(Provenance(kind, line))
        return found


def provenance_from_id(number: int) -> Provenance:
    """What a buffer's number stands for."""
    return _rows[number]
