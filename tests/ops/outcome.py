"""Defines the outcome of a check of one operator, dtype and kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: From best to worst. none: the CPU raises for every sample.
STATUSES = ("none", "right", "wrong", "error", "timeout", "crash")


@dataclass(slots=True)
class Outcome:
    """Outcome of a check; ``message`` is the first line of the first failure, ``cpu`` the ops that ran on the CPU."""

    op: str
    dtype: str
    kind: str
    status: str = "none"
    samples: int = 0
    right: int = 0
    message: str = ""
    sample: str = ""
    cpu: tuple[str, ...] = ()
    decomposed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.dtype, self.kind

    @property
    def failed(self) -> bool:
        return self.status not in ("none", "right")

    def fail(self, status: str, message: str, sample: str) -> None:
        """Record a failure; the first one with the worst status is reported."""
        if STATUSES.index(status) > STATUSES.index(self.status):
            self.status, self.message, self.sample = status, first_line(message), sample[:300]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def first_line(text: str, width: int = 300) -> str:
    """Return the first three nonempty lines as one, truncated to ``width`` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (" ".join(lines[:3]) if lines else text)[:width]


def from_dict(value: dict[str, Any]) -> Outcome:
    """Return the Outcome of an ``as_dict()``, also after a round trip through JSON."""
    return Outcome(**value | {"cpu": tuple(value["cpu"]), "decomposed": tuple(value["decomposed"])})
