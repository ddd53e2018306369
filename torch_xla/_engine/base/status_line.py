"""A progress line on stderr for long operations."""

from __future__ import annotations

import sys
import time

_INTERVAL = 1.0  # seconds between updates of a terminal
_BAR = 20  # columns


class StatusLine:
    """A line on stderr that counts seconds; without a terminal, one line at the start and one at the end.

    Writes nothing before the first ``show()``, for example while acquiring a lock that is free. In a terminal it is
    written once a second at most, whenever ``show()`` is called.
    """

    def __init__(self, text: str) -> None:
        self.text = f"torch_xla: {text}"
        self.start = time.monotonic()
        self.end = "done"  # final state, unless an exception ends the block
        self.shown = False
        self._shown_at = -_INTERVAL
        self._columns = 0  # of the longest line written
        self.terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def show(self, done: int = 0, total: int = 0, unit: str = "files") -> None:
        """Update the line; with ``total``, as a progress bar of ``done`` units."""
        if self.terminal:
            now = time.monotonic()
            if now - self._shown_at < _INTERVAL:
                return
            self._shown_at = now
            bar = f"[{'#' * (_BAR * done // total):-<{_BAR}}] {done}/{total} {unit}," if total else "..."
            self._write_over(f"{self.text} {bar} {self._seconds()} s")
        elif not self.shown:
            self._write(f"{self.text} ...\n")
        self.shown = True

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.shown:
            end = self.end if kind is None else "stopped"
            text = f"{self.text} ... {end} after {self._seconds()} s"
            if self.terminal:
                self._write_over(text)
                text = ""
            self._write(f"{text}\n")

    def _write_over(self, text: str) -> None:
        """Replace the line of the terminal."""
        self._columns = max(self._columns, len(text))
        self._write(f"\r{text:<{self._columns}}")

    def _seconds(self) -> int:
        return round(time.monotonic() - self.start)

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
