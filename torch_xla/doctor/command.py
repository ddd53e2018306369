"""Check the installation and print the facts for a bug report: ``torch-xla doctor``."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence

from torch_xla._engine.base import command_line
from torch_xla.doctor import accelerators, device_check, environment
from torch_xla.doctor.report import DoctorReport, Finding

_WIDTH = 120
_HELP = """\
Check the installation, run a test computation, and print the facts for a bug report.

The report lists versions, the compiler, the recorder, the cache folder, the devices, why a TPU or a GPU was not found,
and the environment variables. Then a separate process computes a gradient on the device. Findings come last, each with
a remedy.

exit codes:
  0  the device computed a tensor; findings, if any, are advice
  1  the device check failed
  2  the command line is wrong
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP)
    parser.add_argument("--json", action="store_true", help="print the report as JSON, for a bug report or a script")
    return parser


def main(argv: Sequence[str], prog: str = "python -m torch_xla.doctor") -> int:
    """Print the report and return the exit code.

    Args:
      argv: arguments after the command's name; default: those of the process.
      prog: name of the command in messages.
    """
    options = make_parser(prog).parse_args(argv)
    report = DoctorReport()
    environment.check_environment(report)
    accelerators.check_accelerators(report)
    works = device_check.run_device_check(report)
    print(render_json(report, works) if options.json else render_text(report, works))
    return 0 if works else 1


def render_json(report: DoctorReport, works: bool) -> str:
    """Format the report as JSON: {"works": bool, "facts": {title: text}, "findings": [{"what": ..., "cure": ...}]}."""
    facts: dict[str, str] = {}
    for title, text in report.lines:
        facts[title] = f"{facts[title]}; {text}" if title in facts else text
    findings = [{"what": finding.what, "cure": finding.cure} for finding in report.findings]
    return json.dumps({"works": works, "facts": facts, "findings": findings}, indent=1)


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
