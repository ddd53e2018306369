"""A progress line on stderr for long operations."""

from __future__ import annotations

import sys
import time


class StatusLine:
    """A line on stderr that counts seconds; without a terminal, one line at the start and one at the end.

    Writes nothing before the first ``show()``, for example while acquiring a lock that is free.
    """

    def __init__(self, text: str) -> None:
        self.text = f"torch_xla: {text}"
        self.start = time.monotonic()
        self.end = "done"  # final state, unless an exception ends the block
        self.shown = False
        self.terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def show(self) -> None:
        """Update the line."""
        if self.terminal:
            self._write(f"\r{self.text} ... {self._seconds()} s ")
        elif not self.shown:
            self._write(f"{self.text} ...\n")
        self.shown = True

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.shown:
            end = self.end if kind is None else "stopped"
            self._write(f"{chr(13) if self.terminal else ''}{self.text} ... {end} after {self._seconds()} s\n")

    def _seconds(self) -> int:
        return round(time.monotonic() - self.start)

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
