"""The first run of a program, made ahead of the script's, with zeros.

On a CPU the first run takes several times as long as a later one: it builds what XLA's libraries keep for each matrix
product, and finds its memory. A thread that has loaded a program before the script asks for it
(prefetch.py) runs it once, while Python builds the model.

    what the compiled program has                    run ahead, as
    a loop of which XLA does not know the end        no: with zeros it may have none
    a call of a kernel that is not ours              no: it may do anything
    more than 256 MB, or 20 GFLOP                    no: the script needs these itself
    none of it, and it is for a CPU                  yes: it ends soon, and nobody notices but the clock

That is found out when the program is compiled, and kept in its file.
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

_MOST_BYTES = 256 << 20  # of operands, results and what the program needs meanwhile
_MOST_FLOPS = 20e9

_CALL = re.compile(r'custom_call_target="([^"]*)"')
_LOOP = re.compile(r"^.* while\(.*$", re.MULTILINE)
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def is_safe_to_run(compiled: jax.stages.Compiled, platform: str) -> bool:
    """Whether a program may run with any operands without the script taking notice; see above."""
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
    flops: float = (compiled.cost_analysis() or {}).get("flops", 0)  # of one turn of each loop
    return all(turns) and most * flops <= _MOST_FLOPS


def run_with_zeros(compiled: jax.stages.Compiled, device: jax.Device) -> None:
    """Runs a harmless program. Raises what jax raises."""
    malloc_tuning.retain_program_memory(program_info.program_sizes(compiled))  # else the memory goes back to the system
    with recorder.enable_x64():
        operands = [jax.device_put(np.zeros(a.shape, a.dtype), device, may_alias=False) for a in compiled.in_avals[0]]
        jax.block_until_ready(compiled(*operands))
    metrics.count("PersistentCacheWarmup")
