"""What the process of a combination receives. Imports neither torch nor jax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PlanJob:
    """A script to compile for a target, and the files that its process writes in ``folder``."""

    target: str
    script: str
    args: tuple[str, ...]
    module: bool
    steps: int | None
    folder: Path

    @property
    def result(self) -> Path:
        """The result as JSON."""
        return self.folder / "result.json"

    @property
    def log(self) -> Path:
        """The output of the script and of the compiler."""
        return self.folder / "log.txt"

    @property
    def note(self) -> Path:
        """The program that is being compiled."""
        return self.folder / "compiling.txt"
