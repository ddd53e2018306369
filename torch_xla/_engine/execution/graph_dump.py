"""XLA_SAVE_TENSORS_FILE: appends every graph that is run to a file, one file per process.

    [ScheduleSyncTensorsGraph]            what requested the run
    TensorsGraphInfo:                     the Python stack, innermost frame first
      ...
    Root Hashes: (...)
    ## BEGIN_GRAPH ... ## END_GRAPH       the graph: text, dot, hlo or stablehlo

The file grows with every step and is never truncated.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import graph_function, hlo_metadata
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.graph import text_format
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import replica_program

SYNC = "ScheduleSyncTensorsGraph"
SYNC_OP_BY_OP = "SyncTensorsGraphOpByOp"
GET_OP_BY_OP = "GetTensorsOpByOp"

_lock = fork_safe_lock()
_MAX_CACHED = 64
_hlo: OrderedDict[Hashable, str] = OrderedDict()  # texts of graphs that were lowered for a dump


def lower_for_dump(spec: GraphSpec, device: int, arguments: Sequence[Any]) -> jax.stages.Lowered:
    """Lower a graph for inspection: for the device's platform, not bound to a device."""
    donates = capabilities.donates_buffers(devices.device(device))
    donated = tuple(position + 2 for position in spec.donated) if donates else ()
    function, group = graph_function.graph_function(spec), replica_program.replica_group_of(spec)
    if group is not None:
        function = replica_program.shard_map_over(function, group)
    with recorder.enable_x64():
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments]
        traced = jax.jit(function, donate_argnums=donated, keep_unused=True).trace(*shapes)
        lowered: jax.stages.Lowered = traced.lower(
            lowering_platforms=(devices.lowering_platform(devices.device(device)),)
        )
    return lowered


def render_graph(form: str, spec: GraphSpec, device: int, arguments: Sequence[Any]) -> str:
    """Return a graph as ``text``, ``dot``, ``hlo`` or ``stablehlo``. ``arguments``: floats, ints, input buffers."""
    if form == "text":
        return text_format.to_text(text_format.graph_lines(spec, devices.hardware_name(device)))
    if form == "dot":
        return text_format.to_dot(text_format.graph_lines(spec, devices.hardware_name(device)))
    lowered = lower_for_dump(spec, device, arguments)
    debug = hlo_metadata.is_enabled()
    if form == "stablehlo":
        return lowered.as_text(debug_info=debug)
    text = hlo_metadata.inline_sources(lowered.as_text(dialect="hlo", debug_info=debug))
    instructions = len(re.findall(r"^ .* = ", text, re.MULTILINE))
    return re.sub(r"^HloModule [^,\s]+", f"HloModule IrToHlo.{instructions}", text)


def _render_cached(form: str, graph: Any, spec: GraphSpec, arguments: Sequence[Any]) -> str:
    if form in ("text", "dot"):
        return render_graph(form, spec, graph.device, arguments)
    key = (form, graph.device, graph.key, spec.precision, hlo_metadata.is_enabled())
    found = _hlo.get(key)
    if found is None:
        found = _hlo[key] = render_graph(form, spec, graph.device, arguments)
        if len(_hlo) > _MAX_CACHED:
            _hlo.popitem(last=False)
    return found


def dump_path(file: Path) -> Path:
    """Return the file of this process: the name with the process index appended, ``.0`` for a single process."""
    return file.with_name(f"{file.name}.{replicas.process_index()}")


def append_graph(run: GraphRun) -> None:
    """Append a graph to XLA_SAVE_TENSORS_FILE, which is set. Raises OSError if it cannot be written."""
    file = settings.XLA_SAVE_TENSORS_FILE
    assert file is not None
    graph, spec, arguments = run.graph, run.spec, (*run.scalars(), *run.leaves())
    rows = [f"[{run.section}]", "TensorsGraphInfo:", *(f"  {frame}" for frame in user_frames.current_stack()), ""]
    rows += [f"Root Hashes: ({', '.join(text_format.root_hashes(spec))})", "", "## BEGIN_GRAPH"]
    with _lock:
        rows.append(_render_cached(settings.XLA_SAVE_TENSORS_FMT, graph, spec, arguments))
        rows += [f"Graph Hash: {graph.key.hex()}", "", "## END_GRAPH", "", ""]
        with dump_path(file).open("a") as out:
            out.write("\n".join(rows))
