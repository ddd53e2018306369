"""Passes that upstream runs before it exports a program with dynamic sizes. torch_xla.stablehlo needs none."""

from __future__ import annotations

from typing import Any

import torch


def exported_program_has_symbolic_input_shape(exported_program: torch.export.ExportedProgram) -> bool:
    """Return whether an input of the program has a dynamic size."""
    values = (node.meta.get("val") for node in exported_program.graph.nodes if node.op == "placeholder")
    return any(isinstance(s, torch.SymInt) for v in values if isinstance(v, torch.Tensor) for s in v.shape)


def process_exported_program_with_symbolic_input(exported_program: torch.export.ExportedProgram) -> Any:
    """Return the program: torch_xla.stablehlo exports dynamic sizes without a pass."""
    return exported_program
