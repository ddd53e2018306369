"""Tests that libraries have for themselves, as they are in their source distributions, on xla devices of the CPU.

    python -m tests.clients.suites [NAME ...] [-- arguments of pytest]

What fails for a reason of the library's, or of this machine's, is in ``suite_failures.py``. Anything else that fails is
an error, and so is one of those that starts to pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.suite_failures import FAILURES

HERE = Path(__file__).parent
#: Where source distributions are kept: beside the environment's libraries.
KEPT = Path(sys.prefix) / "suites"


@dataclass(frozen=True)
class Suite:
    """The tests of one distribution: which of them, and in which environment."""

    distribution: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> Path:
        """The folder of the source distribution, of the version that is in requirements.txt; fetched once."""
        pins = (HERE / "requirements.txt").read_text().split()
        pin = next(line for line in pins if line.startswith(f"{self.distribution}=="))
        name = pin.replace("==", "-").replace("pytorch-ignite", "pytorch_ignite")
        if not (KEPT / name).exists():
            command = [
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                self.distribution,
                "--dest",
                KEPT,
                pin,
            ]
            subprocess.run([sys.executable, *command], check=True)
            with tarfile.open(KEPT / f"{name}.tar.gz") as archive:
                archive.extractall(KEPT, filter="data")
        return KEPT / name

    def run(self, more: Sequence[str]) -> dict[str, bool]:
        """By the test's name, whether it passed; without those that were skipped."""
        folder, results = self.source(), KEPT / f"{self.distribution}.xml"
        results.unlink(missing_ok=True)
        variables = {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += ["-o", "addopts=", "--tb=line", f"--junitxml={results}", *self.arguments, *more]
        subprocess.run(command, cwd=folder, env=os.environ | variables | self.variables, check=False)
        return _results(results)


def _results(file: Path) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        kinds = {child.tag for child in case}
        if "skipped" not in kinds:
            name = f"{case.get('classname')}.{case.get('name')}".removeprefix(".").removeprefix("tests.")
            found[name] = found.get(name, True) and not kinds & {"failure", "error"}
    return found


_IGNITE = ["-m", "tpu", "tests/ignite"]
SUITES = {
    "accelerate": Suite("accelerate", ["tests"]),
    "ignite": Suite("pytorch-ignite", _IGNITE),
    "ignite-spawned": Suite("pytorch-ignite", _IGNITE, {"NUM_TPU_WORKERS": "1"}),  # as its own script does
}


def main() -> int:
    """1 where a test fails that should not, or passes that should fail."""
    own, _, more = " ".join(sys.argv[1:]).partition("--")
    wrong = 0
    for name in [name for name in SUITES if not own.split() or name in own.split()]:
        expected = {test: reason for reason, tests in FAILURES[name].items() for test in tests}
        results = SUITES[name].run(more.split())
        failed = {test for test, passed in results.items() if not passed}
        passes = sorted(test for test in expected if results.get(test))
        for test in sorted(failed - expected.keys()):
            print(f"{name}: {test} fails")
        for test in passes:
            print(f"{name}: {test} passes now; it was expected to fail: {expected[test]}")
        known = len(failed & expected.keys())
        print(f"{name}: {len(results) - len(failed)} passed, {len(failed)} failed, of which {known} were expected")
        wrong += len(failed - expected.keys()) + len(passes) + (not results)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
