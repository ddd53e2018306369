"""A line on stderr for work that keeps the user waiting."""

from __future__ import annotations

import sys
import time


class StatusLine:
    """One line on stderr that counts seconds; where stderr is no terminal, a line at the start and one at the end.

    Nothing is written before the first ``show()``: a lock that is free, say, is not worth a line.
    """

    def __init__(self, text: str) -> None:
        self.text = f"torch_xla: {text}"
        self.start = time.monotonic()
        self.end = "done"  # the last word, unless an exception ends it
        self.shown = False
        self.terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def show(self) -> None:
        """Brings the line up to date."""
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
