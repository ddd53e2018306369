"""What bounds a step, as text, and the first change to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_xla.cli.formatting import format_size

#: Share of a step's time above which collectives are the bottleneck, even if another part is larger.
_COLLECTIVES = 0.4
#: Share of the memory above which arguments and results, rather than temporaries, are what does not fit.
_STATE = 0.6
#: Share of the memory below which a larger batch is possible.
_FREE = 0.5
_CHANGES = {
    "all-gather": "give each chip a larger batch, or shard weights over fewer chips and the batch over the others",
    "reduce-scatter": "give each chip a larger batch, or accumulate gradients over several microbatches",
    "all-reduce": "give each chip a larger batch, or use a smaller tensor-parallel axis",
    "all-to-all": "keep tensors that follow each other in the same sharding",
    "collective-permute": "annotate activations, so that the compiler need not move them between chips",
}


@dataclass(frozen=True, slots=True)
class StepAdvice:
    """The bottleneck, and the change to make first."""

    bottleneck: str
    change: str


def explain_memory(report: Mapping[str, Any]) -> StepAdvice:
    """Explain a report with a program that does not fit."""
    program = next(row for row in report["programs"] if not row["memory"]["fits"])
    memory = program["memory"]
    required, capacity = memory["required_bytes"], memory["capacity_bytes"]
    text = f"needs {format_size(required)} of {format_size(capacity)} per chip"
    if memory["least_bytes"] > _STATE * capacity:
        return StepAdvice(
            f"{text}, mostly parameters and optimizer state",
            "shard parameters and optimizer state over more chips, or store them in bfloat16",
        )
    return StepAdvice(
        f"{text}, mostly activations",
        "recompute activations (checkpoint), or use a smaller batch per chip or more microbatches",
    )


def explain_time(report: Mapping[str, Any], row: Mapping[str, Any]) -> StepAdvice:
    """Explain the time of a step that fits; ``row`` has its sums, as summary.py computes them."""
    for explain in (_host, _idle_chips, _collectives):
        found = explain(report, row)
        if found is not None:
            return found
    parts = row["parts"]
    return _memory_traffic(report, row) if parts["memory"] > parts["compute"] else _compute(row)


def _host(report: Mapping[str, Any], row: Mapping[str, Any]) -> StepAdvice | None:
    fallbacks = [found for found in report["fallbacks"] if found["per_step"] >= 0.5]
    if fallbacks:
        ops = ", ".join(dict.fromkeys(found["op"] for found in fallbacks[:3]))
        return StepAdvice(f"{ops} run on the host in every step", f"replace {ops}, first at {fallbacks[0]['line']}")
    return None


def _idle_chips(report: Mapping[str, Any], row: Mapping[str, Any]) -> StepAdvice | None:
    if row["chips_used"] < row["chips"]:
        text = f"{row['chips_used']} of {row['chips']} chips are used"
        return StepAdvice(text, "shard the model over a mesh of all chips, or take a smaller target")
    return None


def _collectives(report: Mapping[str, Any], row: Mapping[str, Any]) -> StepAdvice | None:
    share = row["parts"]["collectives"] / row["seconds"] if row["seconds"] else 0.0
    if share < _COLLECTIVES and row["parts"]["collectives"] < max(row["parts"]["compute"], row["parts"]["memory"]):
        return None
    sums: dict[tuple[str, int], float] = {}
    for program in report["programs"]:
        for found in program["collectives"]:
            key = found["kind"], found["group"]
            sums[key] = sums.get(key, 0.0) + program["step_runs"] * found["seconds"]
    if not sums or not row["seconds"]:
        return None
    kind, group = max(sums, key=lambda key: sums[key])
    text = f"collectives ({share:.0%} of the time), mostly {kind} among {group} chips"
    return StepAdvice(text, _CHANGES.get(kind, "give each chip a larger batch"))


def _memory_traffic(report: Mapping[str, Any], row: Mapping[str, Any]) -> StepAdvice:
    share = row["parts"]["memory"] / row["seconds"]
    steps = [program for program in report["programs"] if program["step_runs"]]
    slowest = max(steps, key=lambda program: program["step_runs"] * program["work"]["seconds"])
    seconds: dict[str, float] = {}
    for op in slowest["expensive"]:
        name = op["op"].rpartition("/")[2].removeprefix("aten::") or op["name"]
        seconds[name] = seconds.get(name, 0.0) + op["seconds"]
    name = max(seconds, key=lambda key: seconds[key], default="")
    text = f"memory bandwidth ({share:.0%} of the time){f', most of it in {name}' if name else ''}"
    if "attention" in name:
        return StepAdvice(text, "use a fused attention kernel (flash or splash attention)")
    if row["memory"]["required"] < _FREE * row["memory"]["capacity"]:
        return StepAdvice(text, "use a larger batch: more than half of the memory is free")
    return StepAdvice(
        text, "use bfloat16 for weights and activations, or fuse the operations that this row's report lists"
    )


def _compute(row: Mapping[str, Any]) -> StepAdvice:
    share = row["parts"]["compute"] / row["seconds"] if row["seconds"] else 0.0
    text = f"compute ({share:.0%} of the time is in matmuls at their peak rate)"
    if row["values"].get("remat") == "on" and row["memory"]["required"] < _FREE * row["memory"]["capacity"]:
        return StepAdvice(text, "recompute fewer activations: more than half of the memory is free")
    return StepAdvice(text, "use more chips, or a dtype with a higher peak rate")
