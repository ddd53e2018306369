"""What the parts of the doctor report: lines for a bug report, and findings with what to do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be, and what to do about it."""

    what: str
    cure: str = ""


@dataclass
class Report:
    """Lines in the order in which they were found, by their title; and findings."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add_line(self, title: str, text: str) -> None:
        """Adds a line."""
        self.lines.append((title, text))

    def add_finding(self, what: str, cure: str = "") -> None:
        """Adds a finding."""
        self.findings.append(Finding(what, cure))
