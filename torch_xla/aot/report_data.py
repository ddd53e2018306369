"""Builds the data of an ahead-of-time report. Bytes are of one chip; times are estimates in seconds.

environment  script, command, date, versions, cpu, as in torch_xla.debug.report(); device: the target
target       name, chip, chips, hosts, hbm_bytes, peak_flops, hbm_bandwidth, link_bandwidth, source
fits         whether every program fits into the memory of the chips
failure      how the script failed, if it did
abstract     whether nothing was computed, so that values read by the script were zeros
steps        number of step barriers
chips_used   the largest number of chips that a program runs on
programs     number, cause, line, source, ops, runs, step_runs, chips, compile_seconds, error, memory, work, bound,
             parts, collectives, expensive, modules
             step_runs: runs in the latest complete step; memory["least_bytes"]: a lower bound, from arguments and
             results; bound: estimated seconds of compute, memory and collectives, each alone; parts: estimated
             seconds by the resource that bounds each operation
lacks        dtypes that the script uses and the target does not support natively
recompilations, fallbacks, reads    as in torch_xla.debug.report()
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import Any

import torch

from torch_xla._engine.aot.program_collector import CollectedProgram, ProgramCollector
from torch_xla._engine.aot.target_compiler import DoesNotFitError
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.device import abstract_device
from torch_xla.debug import report_data, report_environment

_LARGEST = 5


def build_report(collector: ProgramCollector, failure: str | None, script: str = "") -> dict[str, Any]:
    """Build the report of ``script`` after all programs are compiled."""
    watched = report_data.build_report(None)
    programs = [
        program_entry(seen, collector.target) | {"step_runs": collector.step_runs.get(seen.number, 0)}
        for seen in collector.programs
    ]
    environment = watched["environment"] | {"device": f"compiled for {collector.target.name}, not run on it"}
    if script:
        environment |= {"script": shorten_paths(script), "command": _command_line()}
    return {
        "environment": environment,
        "target": _target(collector.target),
        "chips_used": max((row["chips"] for row in programs), default=0),
        "fits": all(row["memory"]["fits"] for row in programs),
        "failure": failure,
        "abstract": abstract_device.is_enabled(),
        "steps": collector.barriers,
        "programs": programs,
        "lacks": _lacks(collector),
        "recompilations": watched["recompilations"],
        "fallbacks": watched["fallbacks"],
        "reads": watched["reads"],
    }


def _command_line() -> str:
    """Return the command line of the user, without the option for the subprocess that compiles."""
    arguments = sys.orig_argv[1:]
    if "--within" in arguments:
        position = arguments.index("--within")
        del arguments[position : position + 2]
    return shorten_paths(shlex.join(["python", *arguments]))


def _bound(work: dict[str, Any], collectives: list[dict[str, Any]], target: Target) -> dict[str, float]:
    """Return the estimated seconds of each resource of a chip, if the others cost nothing."""
    return {
        "compute": work["flops"] / target.chip.flops["bf16"],
        "memory": work["bytes"] / target.chip.hbm_bandwidth,
        "collectives": sum(row["seconds"] for row in collectives),
    }


def _target(target: Target) -> dict[str, Any]:
    chip = target.chip
    return {
        "name": target.name, "platform": target.platform, "chip": chip.title, "chips": len(target.devices),
        "hosts": target.hosts, "hbm_bytes": chip.hbm_bytes, "peak_flops": chip.flops["bf16"],
        "hbm_bandwidth": chip.hbm_bandwidth, "link_bandwidth": chip.link_bandwidth, "source": chip.source,
    }  # fmt: skip


def program_entry(seen: CollectedProgram, target: Target) -> dict[str, Any]:
    """Return the entry of one program."""
    found = seen.found
    work = None if found is None else dataclasses.asdict(found.work) | {"intensity": found.work.intensity}
    collectives = [dataclasses.asdict(row) for row in found.collectives] if found else []
    return {
        "number": seen.number,
        "cause": seen.cause,
        "line": seen.line,
        "source": report_environment.source_line(seen.line),
        "ops": len(seen.spec.nodes),
        "runs": seen.runs,
        "chips": seen.lowered.chips if seen.lowered else 1,
        "compile_seconds": seen.seconds,
        "error": None if seen.error is None else str(seen.error),
        "memory": _memory_entry(seen, target),
        "work": work,
        "bound": None if work is None else _bound(work, collectives, target),
        "parts": dataclasses.asdict(found.parts) if found else None,
        "collectives": collectives,
        "expensive": [dataclasses.asdict(row) for row in found.expensive] if found else [],
        "modules": [dataclasses.asdict(row) for row in found.modules] if found else [],
    }


def _memory_entry(seen: CollectedProgram, target: Target) -> dict[str, Any]:
    capacity = target.chip.hbm_bytes
    row: dict[str, Any] = {
        "others": seen.others,
        "least_bytes": seen.least_bytes,
        "updated": sum(a.bytes for a in seen.arguments if a.updated),
        "capacity_bytes": capacity,
        "largest": [dataclasses.asdict(large) for large in seen.largest[:_LARGEST]],
    }
    if seen.found is not None:
        required = seen.found.memory.peak + seen.others
        return row | dataclasses.asdict(seen.found.memory) | {"required_bytes": required, "fits": required <= capacity}
    arguments = sum(a.bytes for a in seen.arguments)
    if isinstance(seen.error, DoesNotFitError):
        required = seen.error.required_bytes
        required = required + arguments if seen.error.excludes_arguments else max(required, arguments)
        capacity = seen.error.capacity_bytes or capacity
        return row | {"required_bytes": required + seen.others, "capacity_bytes": capacity, "fits": False}
    return row | {"required_bytes": arguments + seen.others, "fits": arguments + seen.others <= capacity}


#: Dtypes that TPUs do not support natively, and how they are stored and computed.
_ON_TPU = {
    torch.float64: "stored and computed as float32",
    torch.complex128: "stored and computed as complex64",
    torch.int64: "computed as pairs of 32-bit integers, several times slower (XLA_USE_32BIT_LONG=1 stores int32)",
}


def _lacks(collector: ProgramCollector) -> list[dict[str, Any]]:
    if collector.target.platform != "tpu":
        return []
    rows = []
    for dtype, what in _ON_TPU.items():
        count, line = 0, ""
        for seen in collector.programs:
            for node in seen.spec.nodes:
                if any(out == dtype for _, out in node.outs):
                    count += 1
                    line = line or (node.origin.line if node.origin is not None and node.origin.line else "")
        if count:
            rows.append({"dtype": str(dtype).removeprefix("torch."), "ops": count, "line": line, "what": what})
    return rows
