"""Check the installation and print the facts for a bug report: ``python -m torch_xla.doctor``.

The report lists versions, the compiler, the recorder, the cache folder, the devices, why a TPU or a GPU was not found,
and the environment variables. Then a separate process computes a gradient on the device. Findings come last, each with
a remedy.

exit code   0   the device computed a tensor; findings, if any, are advice
            1   the device check failed
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

from torch_xla.doctor import accelerators, device_check, environment
from torch_xla.doctor.report import DoctorReport, Finding

_WIDTH = 120


def main(argv: Sequence[str]) -> int:
    """Print the report and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    report = DoctorReport()
    environment.check_environment(report)
    accelerators.check_accelerators(report)
    works = device_check.run_device_check(report)
    print(render_text(report, works))
    return 0 if works else 1


def render_text(report: DoctorReport, works: bool) -> str:
    """Format the report: lines, findings, and a summary sentence."""
    wide = max(len(title) for title, _ in report.lines)
    lines = [f"{title:<{wide}}  {said}" for title, said in report.lines]
    if report.findings:
        lines.append("")
    for finding in report.findings:
        lines += _paragraph(finding)
    if works:
        outcome = "The device computed a tensor" + ("; the findings are advice." if report.findings else ".")
    else:
        outcome = "THE DEVICE CHECK FAILED: see the findings."
    return "\n".join([*lines, "", outcome])


def _paragraph(finding: Finding) -> list[str]:
    first, *others = finding.what.splitlines()
    lines = textwrap.wrap(first, _WIDTH, initial_indent="* ", subsequent_indent="  ", break_long_words=False)
    lines += [f"  {line}" for line in others]
    return [*lines, f"  -> {finding.cure}"] if finding.cure else lines
