"""Debug information for exported operations; StableHLO here has torch's module paths and lines instead."""

from __future__ import annotations

import torch


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """Raise NotImplementedError: locations of operations are those of the Python code."""
    raise NotImplementedError(
        "write_mlir_debuginfo: operations have the locations of their Python code; set XLA_HLO_DEBUG=1 for module "
        "paths and lines in the HLO, or use mark_pattern_utils.StableHLOCompositeBuilder to name a region"
    )
