"""Run a command as a phase of a longer job: ``python scripts/phase.py "install packages" command args...``

In a terminal one line shows the elapsed seconds and the last line of the command's output, once a second. Elsewhere a
line is printed every ten seconds. A command that fails ends with all of its output and its exit code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_INTERVAL = {True: 1.0, False: 10.0}  # seconds between lines: in a terminal, elsewhere


def main(title: str, command: list[str]) -> int:
    """Run the command and return its exit code."""
    start, is_terminal = time.monotonic(), sys.stderr.isatty()
    with tempfile.NamedTemporaryFile(prefix="phase-") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        show(title, "", start, is_terminal)
        while True:
            try:
                code = child.wait(_INTERVAL[is_terminal])
                break
            except subprocess.TimeoutExpired:
                show(title, last_line(Path(output.name)), start, is_terminal)
            except KeyboardInterrupt:
                child.wait()
                return 130
        if code:
            sys.stderr.write("\n" + Path(output.name).read_text(errors="replace"))
    show(title, f"failed (exit code {code})" if code else "done", start, is_terminal)
    if is_terminal:
        sys.stderr.write("\n")
    return code


def show(title: str, text: str, start: float, is_terminal: bool) -> None:
    """Write one line, over the last one in a terminal."""
    line = f"{title}: {time.monotonic() - start:.0f} s  {text}".rstrip()
    if is_terminal:
        columns = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{line[:columns]:<{columns}}")
    else:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def last_line(file: Path) -> str:
    """Return the last line of the output so far that is not a warning."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 4096))
        lines = [line.strip() for line in opened.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("WARNING")), "")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python scripts/phase.py TITLE command args...")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
