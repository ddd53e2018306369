"""XLA_SAVE_TENSORS_FILE: every graph that is run, appended to a file.

    [ScheduleSyncTensorsGraph]            what asked for it
    TensorsGraphInfo:                     the Python frames that were running, innermost first
      ...
    Root Hashes: (...)
    ## BEGIN_GRAPH ... ## END_GRAPH       the graph: text, dot, hlo or stablehlo

The file grows with every step; nothing here ever shortens it.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from torch_xla._engine import devices, frames, hlo_metadata, ir, ir_forms, program
from torch_xla._engine.program import GraphSpec
from torch_xla._engine.settings import settings

SYNC = "ScheduleSyncTensorsGraph"
SYNC_OP_BY_OP = "SyncTensorsGraphOpByOp"
GET_OP_BY_OP = "GetTensorsOpByOp"

Lower = Callable[[GraphSpec], jax.stages.Lowered]

_lock = threading.Lock()
_KEPT = 64
_hlo: OrderedDict[tuple[str, int, bytes], str] = OrderedDict()  # texts of graphs that were lowered for a dump


def render(form: str, spec: GraphSpec, device: int, lower: Lower) -> str:
    """A graph as ``text``, ``dot``, ``hlo`` or ``stablehlo``. ``lower`` makes jax's Lowered of it, for the last two."""
    if form == "text":
        return ir_forms.text(ir.lines(spec, devices.hardware(device)))
    if form == "dot":
        return ir_forms.dot(ir.lines(spec, devices.hardware(device)))
    lowered = lower(spec)
    debug = hlo_metadata.installed()
    if form == "stablehlo":
        return lowered.as_text(debug_info=debug)
    text = hlo_metadata.inline_sources(lowered.as_text(dialect="hlo", debug_info=debug))
    instructions = len(re.findall(r"^ .* = ", text, re.MULTILINE))
    return re.sub(r"^HloModule [^,\s]+", f"HloModule IrToHlo.{instructions}", text)


def _rendered(form: str, graph: Any, spec: GraphSpec, lower: Lower) -> str:
    if form in ("text", "dot"):
        return render(form, spec, graph.device, lower)
    key = (form, graph.device, graph.key)
    found = _hlo.get(key)
    if found is None:
        found = _hlo[key] = render(form, spec, graph.device, lower)
        if len(_hlo) > _KEPT:
            _hlo.popitem(last=False)
    return found


def path(file: Path) -> Path:
    """The file of this process: with several processes, each has its own, with its rank at the end."""
    return file.with_name(f"{file.name}.{jax.process_index()}") if jax.process_count() > 1 else file


def append(section: str, graph: Any, lower: Lower) -> None:
    """Appends a recorder Graph to XLA_SAVE_TENSORS_FILE, if that is set. Raises OSError where it cannot be written."""
    file = settings.XLA_SAVE_TENSORS_FILE
    if file is None:
        return
    spec = program.describe(graph)
    rows = [f"[{section}]", "TensorsGraphInfo:", *(f"  {frame}" for frame in frames.running()), ""]
    rows += [f"Root Hashes: ({', '.join(ir_forms.root_hashes(spec))})", "", "## BEGIN_GRAPH"]
    with _lock:
        rows.append(_rendered(settings.XLA_SAVE_TENSORS_FMT, graph, spec, lower))
        rows += [f"Graph Hash: {graph.key.hex()}", "", "## END_GRAPH", "", ""]
        with path(file).open("a") as out:
            out.write("\n".join(rows))
