"""Run probe.py in a subprocess and report how far it came: the process may fail, crash or hang."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from torch_xla.doctor.report import DoctorReport

_PROBE = Path(__file__).with_name("probe.py")
_LIMITS = {"recorder": 900.0}  # seconds; the recorder may be compiled, on a busy host
_LIMIT = 180.0

#: Remedy for a failed step whose error message contains none.
_CURES = {
    "torch": "pip install --force-reinstall torch",
    "jax": "pip install --upgrade jax jaxlib, both from the same release",
    "recorder": "",
    "devices": "",
    "a step": "",
}


def run_device_check(report: DoctorReport) -> bool:
    """Report the output of each step. Return whether a tensor was computed; add a finding if not."""
    command = [sys.executable, str(_PROBE), json.dumps(sys.path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        answers = _read_lines(process)
        name, late = "", False
        while True:
            try:
                answer = answers.get(timeout=_LIMITS.get(name, _LIMIT))
            except queue.Empty:
                late = True
                process.kill()
                answer = None
            if answer is None:
                _exit_finding(report, name, process, late)
                return False
            name = answer["step"]
            if "failed" in answer:
                _add_failure(report, answer)
                return False
            if "said" in answer:
                report.add_line(name, answer["said"])
                if name == "a step":
                    return True


def _read_lines(process: subprocess.Popen[str]) -> queue.SimpleQueue[dict[str, str] | None]:
    """Read the process's output lines on a thread; None marks the end."""
    found: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
    lines = process.stdout
    assert lines is not None

    def read() -> None:
        for line in lines:
            found.put(json.loads(line))
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    return found


def _add_failure(report: DoctorReport, answer: dict[str, str]) -> None:
    report.add_line(answer["step"], "FAILED")
    what = f"{answer['kind']}: {answer['failed']}"
    if answer["kind"] != "RecorderBuildError":  # its message has a remedy, and no source line is at fault
        what += f"\n(at {answer['line']})"
    cure = "" if answer["kind"] == "RecorderBuildError" else _CURES[answer["step"]]
    report.add_finding(what, cure)


def _exit_finding(report: DoctorReport, name: str, process: subprocess.Popen[str], late: bool) -> None:
    report.add_line(name, "FAILED")
    if late:
        report.add_finding(
            f"The step `{name}` did not finish within {_LIMITS.get(name, _LIMIT):.0f} s.", _CURES.get(name, "")
        )
        return
    code = process.wait()
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    report.add_finding(f"The step `{name}` ended its process ({how}); its output is above.", _CURES.get(name, ""))
