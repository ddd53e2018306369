"""Notes how long it takes from ``git clone`` to a trained model, in docs/first_run.md, with the log.

    python scripts/docs/first_run.py

What is committed here is cloned into an empty folder; `make setup` and `make demo` run there, with nothing compiled
before (caches of the recorder and of programs are empty, ccache is off) and pip's cache warm: an environment is made
and thrown away first. A quiet machine, please: the figure is of everything that runs on it. Ends with 1 where a command
fails, or where it takes longer than three minutes.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first_run.md"
LIMIT = 180.0  # seconds
COMMANDS = ("git clone --quiet {root} torch_xla", "make setup", "make demo")
_HEAD = """\
# From git clone to a trained model

Made by `python scripts/docs/first_run.py`: a clone in an empty folder, with pip's cache warm and nothing compiled
before. `make demo` would do what `make setup` does; they are two here to see both times.

**{seconds:.0f} seconds** on {machine}, {date}.

"""


def run(command: str, folder: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Seconds, and what it printed. Raises CalledProcessError, after printing what it said."""
    start = time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    took, said = time.perf_counter() - start, done.stdout.decode()  # as text, each \r would be the end of a line
    if done.returncode:
        print(said, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return took, said


def readable(output: str, folder: Path) -> str:
    """The lines of an output as they stay on a screen: of a line that is written again and again, the last."""
    lines = [line.rstrip().split("\r")[-1] for line in output.split("\n")]
    shown = "\n".join(line.replace(str(folder), "~") for line in lines if line)
    return re.sub(r"(?m)^/\S+/(python\S*) ", r"\1 ", shown)  # wherever it is installed here


def machine() -> str:
    """The processor, and how many of it."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores of {found[1] if found else 'an unknown processor'}"


def main() -> int:
    """Runs all, and writes the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "TORCH_XLA_CACHE_DIR": str(folder / "cache"), "XLA_PERSISTENT_CACHE_PATH": str(folder / "programs"),
            "CCACHE_DISABLE": "1", "PIP_QUIET": "1",  # on top of --quiet: what pip says of its settings here is no news
        }  # fmt: skip
        for variable in ("PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(variable, None)
        run(f"git clone --quiet {ROOT} warm && make -C warm setup && rm -rf warm", folder, environment)
        log, whole = [], 0.0
        for command in COMMANDS:
            place = folder if command.startswith("git") else folder / "torch_xla"
            took, said = run(command.format(root=ROOT), place, environment)
            whole += took
            shown = command.format(root="<this repository>")
            log.append(f"$ {shown}\n{readable(said, place)}".rstrip() + f"\n[{took:.1f} s]")
            print(f"{shown}: {took:.1f} s", flush=True)
    today = datetime.date.today().isoformat()
    text = _HEAD.format(seconds=whole, machine=machine(), date=today) + "```text\n" + "\n\n".join(log) + "\n```\n"
    PAGE.write_text(text)
    print(f"{whole:.0f} s: {PAGE}")
    return int(whole > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
