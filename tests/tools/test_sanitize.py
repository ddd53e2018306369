"""Tests how sanitize.py reads the sanitizers' reports; it runs no sanitizer, which sanitize.py verifies before each
use.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import sanitize
from tests.tools.sanitize import RECORDER, SANITIZERS, findings

OURS = "    #{} torch_xla::collect_all(signed char) {}/graph.cpp:200 (_torch_xla_recorder.so+0x2b)\n"
OTHERS = "    #0 at::native::add /torch/lib.cpp:7 (libtorch_cpu.so+0x1)\n"
RACE = "==================\nWARNING: ThreadSanitizer: data race (pid=12)\n  Write of size 8 at 0x1 by thread T1:\n"
FREED = "=====\n==12==ERROR: AddressSanitizer: heap-use-after-free on address 0x6 at pc 0x7\nREAD of size 4\n"
OVERFLOW = "{}/hash.h:30:9: runtime error: signed integer overflow\n"


@pytest.mark.parametrize(
    ("sanitizer", "text", "count", "places"),
    [
        ("thread", RACE + OURS.format(0, RECORDER.sources), 1, ["data race graph.cpp:200"]),
        ("thread", (RACE + OURS.format(1, RECORDER.sources)) * 2, 2, ["data race graph.cpp:200"] * 2),
        ("thread", RACE + OTHERS + "=====\nThreadSanitizer: reported 1 warnings\n", 0, ["data race"]),
        ("address", FREED + OTHERS + OURS.format(1, RECORDER.sources), 1, ["heap-use-after-free graph.cpp:200"]),
        ("address", OVERFLOW.format(RECORDER.sources), 1, ["signed integer overflow hash.h:30"]),
        ("address", OVERFLOW.format("/torch/include"), 0, ["signed integer overflow"]),
        ("thread", "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:1\n" + OTHERS, 0, ["CHECK failed: tsan_rtl.cpp:1"]),
        ("address", "", 0, []),
    ],
)
def test_findings_are_classified(tmp_path: Path, sanitizer: str, text: str, count: int, places: list[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "options.12").write_text(text)
    found = findings(tmp_path, SANITIZERS[sanitizer].begins)
    assert sum(finding.is_of(RECORDER) for finding in found) == count
    assert [finding.place for finding in found] == places


def test_exit_code_is_1_for_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(sanitizer: sanitize.Sanitizer, options: list[str], home: Path) -> object:
        (home / "logs").mkdir(parents=True)
        (home / "logs" / "options.12").write_text("".join(text for text in options if text.startswith("=")))
        return sanitize.Counter(passed=1), [], findings(home, sanitizer.begins)

    monkeypatch.setattr(sanitize, "run", run)
    monkeypatch.setattr(sanitize, "missed_faults", lambda sanitizer, home: [])
    race = RACE + OURS.format(0, RECORDER.sources)
    assert sanitize.main(["--only", "thread", "--logs", str(tmp_path / "clean")]) == 0
    assert sanitize.main(["--only", "thread", "--logs", str(tmp_path / "race"), race]) == 1
    monkeypatch.setattr(sanitize, "missed_faults", lambda sanitizer, home: ["race"])
    assert sanitize.main(["--only", "thread", "--logs", str(tmp_path / "blind")]) == 1
