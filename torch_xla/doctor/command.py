"""``python -m torch_xla.doctor``: what a bug report needs, and what is wrong here.

It names the versions, the compiler, the recorder, the cache folder, the devices, why a TPU or a GPU was not found, and
the environment variables; then it computes a gradient on the device in a process of its own. What it finds comes last,
each with what to do.

exit code   0   a tensor was computed on the device; findings, if there are any, are advice
            1   no tensor can be computed here
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

from torch_xla.doctor import accelerators, device_check, environment
from torch_xla.doctor.report import Finding, Report

_WIDTH = 120


def main(argv: Sequence[str]) -> int:
    """Prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    report = Report()
    environment.check_environment(report)
    accelerators.check_accelerators(report)
    works = device_check.run_device_check(report)
    print(render_text(report, works))
    return 0 if works else 1


def render_text(report: Report, works: bool) -> str:
    """The report as it is printed: lines, findings, and one sentence."""
    wide = max(len(title) for title, _ in report.lines)
    lines = [f"{title:<{wide}}  {said}" for title, said in report.lines]
    if report.findings:
        lines.append("")
    for finding in report.findings:
        lines += _paragraph(finding)
    if works:
        outcome = "A tensor was computed on the device" + ("; the findings are advice." if report.findings else ".")
    else:
        outcome = "NO TENSOR CAN BE COMPUTED: the findings say why."
    return "\n".join([*lines, "", outcome])


def _paragraph(finding: Finding) -> list[str]:
    first, *others = finding.what.splitlines()
    lines = textwrap.wrap(first, _WIDTH, initial_indent="* ", subsequent_indent="  ", break_long_words=False)
    lines += [f"  {line}" for line in others]
    return [*lines, f"  -> {finding.cure}"] if finding.cure else lines
