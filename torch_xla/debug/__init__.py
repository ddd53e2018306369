"""Diagnose performance, recompilation, memory and numerical problems."""

from torch_xla.debug.step_report import Report, report
from torch_xla.debug.utilization import StepSummary, add_step_callback, remove_step_callback

__all__ = ["Report", "StepSummary", "add_step_callback", "remove_step_callback", "report"]
