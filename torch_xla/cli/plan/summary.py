"""Summarizes results as the rows of a plan. Bytes, FLOPs and times are of one chip and one step.

target, values       the combination; label: both as text
result, reason       "fits", "does not fit", "failed" or "not compiled", and why
chips, chips_used    of the target, and of the largest program
memory               required, capacity, arguments, temporaries: bytes of the program that needs most
flops, products      operations, and those of matmuls
bytes                HBM traffic
collective_bytes     results of collectives
seconds, parts       estimated time, and its parts by the resource that bounds each operation
mfu                  upper bound of the model FLOPs utilization
per_second           tokens or samples of all chips
per_dollar           the same, for the price of the chips
bottleneck, advice   as text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_xla.cli.plan import advice
from torch_xla.cli.plan.variations import Combination, price_of

FITS, DOES_NOT_FIT, FAILED, NOT_COMPILED = "fits", "does not fit", "failed", "not compiled"
#: Length of a reason, in characters.
_REASON = 300


def make_row(
    combination: Combination, result: Mapping[str, Any], count: float | None, prices: Mapping[str, float]
) -> dict[str, Any]:
    """Return the row of a combination.

    Args:
      combination: the target and the values.
      result: what its process wrote: ``report`` or ``error``.
      count: tokens or samples per step of all chips; None if unknown.
      prices: price of a chip for an hour, by target or chip.
    """
    row: dict[str, Any] = {"target": combination.target, "values": dict(combination.values), "label": combination.label}
    report = result.get("report")
    if report is None:
        missing = result.get("lasts") is False and "not installed" in result["error"]
        return row | {"result": NOT_COMPILED if missing else FAILED, "reason": _shorten(result["error"])}
    target = report["target"]
    row |= {"chip": target["chip"], "chips": target["chips"], "chips_used": report["chips_used"]}
    row |= {"memory": _memory(report), "compile_seconds": result.get("seconds")}
    error = report["failure"] or next((p["error"] for p in report["programs"] if p["error"]), None)
    if not report["fits"]:
        found = advice.explain_memory(report)
        return row | {"result": DOES_NOT_FIT, "reason": found.bottleneck, "advice": found.change}
    if error is not None:
        return row | {"result": FAILED, "reason": _shorten(error)}
    if not any(program["step_runs"] for program in report["programs"]):
        return row | {"result": FAILED, "reason": "the script ran no step: no program ran before a torch_xla.sync()"}
    row |= {"result": FITS, "reason": ""} | summarize_step(report)
    return row | _rates(row, count, price_of(combination.target, prices)) | _advice(report, row)


def summarize_step(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over the programs of the latest complete step, times their runs."""
    ran = [(program, program["step_runs"]) for program in report["programs"] if program["step_runs"]]

    def total(name: str) -> float:
        return float(sum(runs * program["work"][name] for program, runs in ran))

    seconds, products = total("seconds"), total("products")
    parts = {name: sum(runs * program["parts"][name] for program, runs in ran) for name in ran[0][0]["parts"]}
    moved = sum(runs * collective["bytes"] for program, runs in ran for collective in program["collectives"])
    return {
        "flops": total("flops"), "products": products, "bytes": total("bytes"), "collective_bytes": moved,
        "seconds": seconds, "parts": parts,
        "mfu": products / report["target"]["peak_flops"] / seconds if seconds else 0.0,
    }  # fmt: skip


def _memory(report: Mapping[str, Any]) -> dict[str, Any]:
    rows = [program["memory"] for program in report["programs"]]
    most: dict[str, Any] = max(rows, key=lambda memory: memory["required_bytes"], default={})
    capacity = most.get("capacity_bytes", report["target"]["hbm_bytes"])
    return {
        "required": most.get("required_bytes", 0), "capacity": capacity, "arguments": most.get("arguments"),
        "temporaries": most.get("temporaries"),
    }  # fmt: skip


def _rates(row: Mapping[str, Any], count: float | None, price: float | None) -> dict[str, Any]:
    if not row["seconds"]:
        return {"per_second": None, "per_dollar": None, "price": price}
    per_second = (1.0 if count is None else count) / row["seconds"]
    hourly = None if price is None else price * row["chips"]
    return {"per_second": per_second, "per_dollar": hourly and 3600 * per_second / hourly, "price": price}


def _advice(report: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    found = advice.explain_time(report, row)
    return {"bottleneck": found.bottleneck, "advice": found.change}


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON else line[: _REASON - 1] + "…"


def _sort_value(row: Mapping[str, Any], key: str) -> float | None:
    if key == "memory":
        return float(row["memory"]["required"]) if "memory" in row else None
    return None if row.get(key) is None else -float(row[key])


def sort_rows(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sort by ``per_second``, ``per_dollar`` (largest first) or ``memory`` (smallest first); rows without one last."""
    order = {FITS: 0, DOES_NOT_FIT: 1, FAILED: 2, NOT_COMPILED: 3}

    def position(row: Mapping[str, Any]) -> tuple[int, bool, float]:
        value = _sort_value(row, key)
        return order[row["result"]], value is None, value or 0.0

    return sorted(rows, key=position)
