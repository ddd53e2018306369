"""Report of the doctor: facts for a bug report, and findings with remedies."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A problem, or a possible one, and its remedy."""

    what: str
    cure: str = ""


@dataclass
class DoctorReport:
    """Lines by title, in the order in which they were added, and findings."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add_line(self, title: str, text: str) -> None:
        """Add a line."""
        self.lines.append((title, text))

    def add_finding(self, what: str, cure: str = "") -> None:
        """Add a finding with its remedy."""
        self.findings.append(Finding(what, cure))
