"""Record which operation and which source line created each buffer.

A buffer has a provenance ID, an index into a table with one row per pair of kind and user line. The table lives as long
as the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a buffer: its kind (upload, result, fallback, transfer, unknown) and the user's line, or ""."""

    kind: str
    line: str


UNKNOWN = Provenance("unknown", "")

_lock = fork_safe_lock()
_numbers: dict[tuple[str, str], int] = {("unknown", ""): 0}
#: Limit of the table. Only long-running notebooks, which have a file per cell, reach it.
_MAX_ROWS = 1 << 16
_rows: list[Provenance] = [UNKNOWN]


def provenance_id(kind: str, line: str) -> int:
    """Return the ID of a provenance; 0 (unknown) if the table is full."""
    found = _numbers.get((kind, line))
    if found is not None:
        return found
    with _lock:
        if len(_rows) == _MAX_ROWS:
            return 0
        found = _numbers.setdefault((kind, line), len(_rows))
        if found == len(_rows):
            _rows.append(Provenance(kind, line))
        return found


def provenance_from_id(number: int) -> Provenance:
    """Return the provenance with an ID."""
    return _rows[number]
