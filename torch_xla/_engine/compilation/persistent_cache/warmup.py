"""Runs a prefetched program once with zeros, as the first run of a CPU program is several times slower than later ones.

The first run builds the state of XLA's libraries for each matrix multiplication and allocates memory. The thread that
has loaded a program before the script needs it (prefetch.py) runs it once, while Python builds the model.

    the compiled program has                   warm-up run
    a loop without a known trip count          no: with zeros it may not terminate
    a custom call of another library           no: it may have side effects
    more than 256 MB, or 20 GFLOP              no: the script needs the memory and the core itself
    none of these, and is for a CPU            yes: it ends soon and has no side effects

This is determined when the program is compiled, and stored in its file.
"""

from __future__ import annotations

import re

import jax
import numpy as np

from torch_xla._engine import recorder
from torch_xla._engine.cpu_backend import malloc_tuning
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.graph import program_info
from torch_xla._engine.lowering import cpu_kernel_call

_MOST_BYTES = 256 << 20  # of operands, results and temporary buffers
_MOST_FLOPS = 20e9

_CALL = re.compile(r'custom_call_target="([^"]*)"')
_LOOP = re.compile(r"^.* while\(.*$", re.MULTILINE)
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def is_safe_to_run(compiled: jax.stages.Compiled, platform: str) -> bool:
    """Return whether a program ends soon and has no side effects with any operands (see the table above)."""
    return platform == "cpu" and _is_small(compiled) and _is_bounded(compiled)


def _is_small(compiled: jax.stages.Compiled) -> bool:
    found = compiled.memory_analysis()
    needed = (found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes) if found else ()
    return bool(needed) and sum(needed) <= _MOST_BYTES


def _is_bounded(compiled: jax.stages.Compiled) -> bool:
    text = compiled.as_text() or ""
    if not all(target.startswith(cpu_kernel_call.PREFIX) for target in _CALL.findall(text)):
        return False
    turns = [_TURNS.search(loop) for loop in _LOOP.findall(text)]
    most = max((int(found[1]) for found in turns if found), default=1)
    flops: float = (compiled.cost_analysis() or {}).get("flops", 0)  # of one iteration of each loop
    return all(turns) and most * flops <= _MOST_FLOPS


def run_with_zeros(compiled: jax.stages.Compiled, device: jax.Device) -> None:
    """Run a program that is safe to run. Raises jax's errors."""
    malloc_tuning.retain_program_memory(
        program_info.program_sizes(compiled)
    )  # else malloc returns the memory to the system
    with recorder.enable_x64():
        operands = [jax.device_put(np.zeros(a.shape, a.dtype), device, may_alias=False) for a in compiled.in_avals[0]]
        jax.block_until_ready(compiled(*operands))
    metrics.count("PersistentCacheWarmup")
