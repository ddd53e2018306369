"""Seeing what the device does."""

from torch_xla.debug.step_report import Report, report

__all__ = ["Report", "report"]
