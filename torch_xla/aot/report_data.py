"""The numbers of a report on what a script does on a target. Bytes are of one chip; times in seconds, estimates all.

target       name, chip, chips, hosts, hbm_bytes, peak_flops, hbm_bandwidth, link_bandwidth, source
fits         whether every program has room on the chips
failure      how the script ended, where it did not end well
abstract     whether nothing was computed: values that the script read were zeros
steps        barriers that it made
programs     number, cause, line, ops, runs, chips, compile_seconds, error, memory, work, collectives, expensive
lacks        what the target does not have, and this script uses
recompilations, fallbacks, reads    as torch_xla.debug.report() has them
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from torch_xla._engine.aot.program_collector import CollectedProgram, ProgramCollector
from torch_xla._engine.aot.target_compiler import DoesNotFitError
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.device import abstract_device
from torch_xla.debug import report_data

_LARGEST = 5


def build_report(watcher: ProgramCollector, failure: str | None) -> dict[str, Any]:
    """The dict of a report, when all programs are compiled."""
    watched = report_data.build_report(None)
    programs = [program_entry(seen, watcher.target) for seen in watcher.programs]
    return {
        "target": _target(watcher.target),
        "fits": all(row["memory"]["fits"] for row in programs),
        "failure": failure,
        "abstract": abstract_device.is_enabled(),
        "steps": watcher.barriers,
        "programs": programs,
        "lacks": _lacks(watcher),
        "recompilations": watched["recompilations"],
        "fallbacks": watched["fallbacks"],
        "reads": watched["reads"],
    }


def _target(target: Target) -> dict[str, Any]:
    chip = target.chip
    return {
        "name": target.name, "platform": target.platform, "chip": chip.title, "chips": len(target.devices),
        "hosts": target.hosts, "hbm_bytes": chip.hbm_bytes, "peak_flops": chip.flops["bf16"],
        "hbm_bandwidth": chip.hbm_bandwidth, "link_bandwidth": chip.link_bandwidth, "source": chip.source,
    }  # fmt: skip


def program_entry(seen: CollectedProgram, target: Target) -> dict[str, Any]:
    """What a report says of one program."""
    found = seen.found
    return {
        "number": seen.number,
        "cause": seen.cause,
        "line": seen.line,
        "ops": len(seen.spec.nodes),
        "runs": seen.runs,
        "chips": seen.lowered.chips if seen.lowered else 1,
        "compile_seconds": seen.seconds,
        "error": None if seen.error is None else str(seen.error),
        "memory": _memory_entry(seen, target),
        "work": None if found is None else dataclasses.asdict(found.work) | {"intensity": found.work.intensity},
        "collectives": [dataclasses.asdict(row) for row in found.collectives] if found else [],
        "expensive": [dataclasses.asdict(row) for row in found.expensive] if found else [],
    }


def _memory_entry(seen: CollectedProgram, target: Target) -> dict[str, Any]:
    room = target.chip.hbm_bytes
    row: dict[str, Any] = {
        "others": seen.others,
        "updated": sum(a.bytes for a in seen.arguments if a.updated),
        "room": room,
        "largest": [dataclasses.asdict(large) for large in seen.largest[:_LARGEST]],
    }
    if seen.found is not None:
        needs = seen.found.memory.peak + seen.others
        return row | dataclasses.asdict(seen.found.memory) | {"needs": needs, "fits": needs <= room}
    arguments = sum(a.bytes for a in seen.arguments)
    if isinstance(seen.error, DoesNotFitError):
        needs = seen.error.needs + arguments if seen.error.beside else max(seen.error.needs, arguments)
        needs += seen.others
        return row | {"needs": needs, "room": seen.error.room or room, "fits": False}
    return row | {"needs": arguments + seen.others, "fits": arguments + seen.others <= room}


#: What TPUs store as something else, or compute in several steps, and what becomes of it.
_ON_TPU = {
    torch.float64: "stored and computed as float32",
    torch.complex128: "stored and computed as complex64",
    torch.int64: "computed as pairs of 32-bit integers, several times slower (XLA_USE_32BIT_LONG=1 stores int32)",
}


def _lacks(watcher: ProgramCollector) -> list[dict[str, Any]]:
    if watcher.target.platform != "tpu":
        return []
    rows = []
    for dtype, what in _ON_TPU.items():
        count, line = 0, ""
        for seen in watcher.programs:
            for node in seen.spec.nodes:
                if any(out == dtype for _, out in node.outs):
                    count += 1
                    line = line or (node.origin.line if node.origin is not None and node.origin.line else "")
        if count:
            rows.append({"dtype": str(dtype).removeprefix("torch."), "ops": count, "line": line, "what": what})
    return rows
