"""Detect process-dependent parts of a program's StableHLO: Python callbacks and memory addresses.

    custom_call @xla_ffi_python_cpu_callback     a callback, on the CPU and on GPUs
    "stablehlo.send", is_host_transfer = true    part of a callback, on TPUs; likewise "stablehlo.recv"
    custom_call @CustomSPMDPartitioning          jax's custom_partitioning: its backend_config is an address

The patterns match generic MLIR and HLO text as well.
"""

from __future__ import annotations

import re

_TARGET = r"""(?:custom_call @"?|call_target(?:_name)? ?= ?")"""
_CALL = re.compile(rf'{_TARGET}[^"( ]*callback|is_host_transfer ?= ?true')
_ADDRESS = re.compile(rf"{_TARGET}CustomSPMDPartitioning\b")


def count_python_calls(text: str) -> int:
    """Count the operations that call Python: one per callback; on TPUs one per argument and result of a callback."""
    return len(_CALL.findall(text))


def is_tied_to_process(text: str) -> bool:
    """Whether a program is only valid in this process because it calls Python or contains an address."""
    return _CALL.search(text) is not None or _ADDRESS.search(text) is not None
