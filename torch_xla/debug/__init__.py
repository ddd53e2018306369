"""Diagnose performance, recompilation, memory and numerical problems."""

from torch_xla.debug.step_report import Report, report

__all__ = ["Report", "report"]
