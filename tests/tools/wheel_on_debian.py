"""Checks the wheel on clean Debian systems without a compiler, for several torch releases: ``make test-wheel``.

    python -m tests.tools.wheel_on_debian [bookworm trixie] [--wheel dist/torch_xla-....whl] [--torch 2.13.0 ...]

Bootstraps each system with the Python of Debian and no compiler, installs each torch with the newest jax for that
Python as a user, and runs scripts/check_wheel.py there: from ``pip install`` of the wheel to the first training step in
at most ten seconds. Needs what ``make test-debian`` needs, and ``make wheel`` before. Each torch with CUDA's libraries
takes 6 GB, which are removed before the next.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tests.tools import clean_debian
from tests.tools.clean_debian import ROOT, SUITES, Debian, Step

TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
#: No constraints: jax is the newest for the Python of the system.
_UNPINNED = {"PIP_CONSTRAINT": ""}
_PREPARE = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && "
    "apt-get install -qy --no-install-recommends ca-certificates python3 python3-venv && useradd --create-home user"
)


def make_steps(torch: str, wheel: str) -> list[Step]:
    """Return the steps for one torch release; the wheel is in the user's home."""
    install = f"python3 -m venv venv && venv/bin/pip install --quiet --no-cache-dir torch=={torch} jax"
    check = f"venv/bin/python check_wheel.py --wheel {wheel} $HOME/venv/bin/python"
    return [
        Step(f"pip install torch=={torch} jax", f"rm -rf venv && {install}", environment=_UNPINNED),
        Step(f"torch {torch}: the wheel", check, words=(f"check_wheel: torch {torch}",), environment=_UNPINNED),
    ]


def bring(debian: Debian, wheel: Path) -> None:
    """Copy the wheel and its check to the user's home."""
    for file in (wheel, ROOT / "scripts" / "check_wheel.py"):
        copy = shutil.copy(file, debian.root / "home" / "user")
        shutil.chown(copy, 1000, 1000)


def check(debian: Debian, wheel: Path, torches: list[str]) -> list[str]:
    """Run all steps and print their results; return the names of those that failed."""
    first = [
        Step("apt-get install python3", _PREPARE, user="root"),
        Step("no compiler", "for name in c++ cc g++ gcc clang make; do ! command -v $name || exit 1; done"),
    ]
    failed = []
    for number, step in enumerate([*first, *(step for torch in torches for step in make_steps(torch, wheel.name))]):
        passed = clean_debian.run_step(debian, step)
        if step.words:
            print("\n".join(line for line in debian.log.read_text().splitlines()[-3:] if "check_wheel" in line))
        if not passed:
            failed.append(step.name)
        if number == 0:
            bring(debian, wheel)
    return failed


def main() -> int:
    """Return 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE")
    parser.add_argument("--folder", type=Path, default=Path("build/debian"), help="folder of the systems; some GB each")
    parser.add_argument("--mirror", help="Debian mirror (default: that of apt)")
    parser.add_argument("--wheel", type=Path, help="default: the newest in dist")
    parser.add_argument("--torch", nargs="+", default=list(TORCHES), help="torch releases")
    options = parser.parse_args()
    clean_debian.in_own_name_space("tests.tools.wheel_on_debian")
    wheel = options.wheel or max((ROOT / "dist").glob("*.whl"), key=lambda file: file.stat().st_mtime)
    systems = clean_debian.make_systems(options.suites, options.folder, options.mirror)
    failed = [name for debian in systems for name in check(debian, wheel, options.torch)]
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
