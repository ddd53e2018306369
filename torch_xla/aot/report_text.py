"""Renders an ahead-of-time report as text."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla.debug.report_environment import environment_lines

_ROWS = 8
_MODULES = 12
NO_MODULE = "outside of modules"


def render_text(data: dict[str, Any]) -> str:
    """Return the report as text: whether the programs fit, each program, then dtypes, recompilations and fallbacks."""
    target = data["target"]
    machines = f" in {target['hosts']} machines" if target["hosts"] > 1 else ""
    count, steps = len(data["programs"]), data["steps"]
    lines = [
        "",
        *environment_lines(data["environment"]),
        "",
        f"{target['name']}: {target['chips']} × {target['chip']}{machines}; each {format_bytes(target['hbm_bytes'])} "
        f"of HBM, {_format_rate(target['peak_flops'])}FLOP/s (bf16), {_format_rate(target['hbm_bandwidth'])}B/s",
        f"{fit_summary(data)}: {count} program{'s'[: count != 1]}, {steps} step{'s'[: steps != 1]}",
        chips_summary(data),
        *([f"{data['failure']}; the report covers what ran before"] if data["failure"] else []),
    ]
    for row in data["programs"]:
        lines += ["", *_program(row)]
    unsupported = [
        f"{r['dtype']}: {r['what']}; {r['ops']} ops, the first at {r['line'] or 'an unknown line'}"
        for r in data["lacks"]
    ]
    fallbacks = [f"{r['per_step']:.2f} per step  {r['op']}  {r['line']}" for r in data["fallbacks"]]
    read = "Values read (zeros)" if data["abstract"] else "Values read"
    lines += _section("Unsupported dtypes", unsupported)
    lines += _section("Recompilations", [f"{r['times']} × {r['text']}" for r in data["recompilations"]])
    lines += _section("CPU fallbacks", fallbacks)
    lines += _section(read, [f"{r['per_step']:.2f} per step  {r['line']}" for r in data["reads"]])
    lines += ["", *estimate_notes(data)]
    return shorten_paths("\n".join(lines) + "\n")


def chips_summary(data: dict[str, Any]) -> str:
    """Return how many chips of the target the programs use."""
    used, chips = data["chips_used"], data["target"]["chips"]
    hint = "" if used == chips else " (to use all, start one process per chip or shard the model over a mesh)"
    return f"the script uses {used} of {chips} chip{'s'[: chips != 1]}{hint}"


def format_bound(row: dict[str, Any]) -> str:
    """Format which resource bounds the time of a program, and the time of each alone."""
    names = {"compute": "compute", "memory": "memory bandwidth", "collectives": "collectives"}
    bound = {name: seconds for name, seconds in row["bound"].items() if seconds or name != "collectives"}
    largest = max(bound, key=lambda name: bound[name])
    times = ", ".join(f"{names[name]} {format_duration(seconds)}" for name, seconds in bound.items())
    return f"bound by {names[largest]} (estimate of each alone: {times})"


def fit_summary(data: dict[str, Any]) -> str:
    """Return ``fits``, or the programs that do not fit."""
    if data["fits"]:
        return "fits"
    numbers = [str(row["number"]) for row in data["programs"] if not row["memory"]["fits"]]
    return f"does not fit (program{'s'[: len(numbers) != 1]} {', '.join(numbers)})"


def estimate_notes(data: dict[str, Any]) -> list[str]:
    """Return the explanation of the estimates."""
    return [
        "Memory is reported by the compiler. Times are estimates from published specifications of the chip",
        f"({data['target']['source']}): for an operation, the larger of its FLOPs at the peak rate and its bytes at",
        "the HBM bandwidth; for a collective, its bytes over all links of a chip; summed, as if nothing overlapped.",
    ]


def _program(row: dict[str, Any]) -> list[str]:
    chips = f" on {row['chips']} chips" if row["chips"] > 1 else ""
    lines = [
        f"Program {row['number']}: {row['ops']} ops{chips}, ran {format_run_count(row['runs'])}; "
        f"{row['cause']}, {row['line']}",
        *([f"  source      {row['source']}"] if row["source"] else []),
        f"  memory      {format_memory(row['memory'])}",
    ]
    if row["error"]:
        lines += [f"  error       {line}" if not i else f"              {line}"
                  for i, line in enumerate(row["error"].splitlines())]  # fmt: skip
    if not row["memory"]["fits"]:
        lines += [f"  largest     {format_large_buffer(found)}" for found in row["memory"]["largest"]]
    if row["work"] is None:
        return lines
    lines += [f"  work        {format_cost(row['work'])}", f"  time        {format_time(row)}"]
    lines += [f"  bound       {format_bound(row)}"]
    lines += [f"  collectives {format_collective(found)}" for found in row["collectives"]]
    total = row["work"]["seconds"] or 1.0
    lines += [f"  {'expensive' if not i else '':<11} {format_expensive_op(found, total)}"
              for i, found in enumerate(row["expensive"])]  # fmt: skip
    lines += [f"  {'modules' if not i else '':<11} {format_module(found, total)}"
              for i, found in enumerate(row["modules"][:_MODULES])]  # fmt: skip
    hidden = len(row["modules"]) - _MODULES
    return [*lines, f"              and {hidden} more modules"] if hidden > 0 else lines


def format_memory(row: dict[str, Any]) -> str:
    """Format the required memory, the capacity, and the parts of the required memory."""
    capacity = format_bytes(row["capacity_bytes"])
    head = f"{'fits' if row['fits'] else 'does not fit'}: needs {format_bytes(row['required_bytes'])}, has {capacity}"
    if "peak" not in row:
        return head
    parts = [f"arguments {format_bytes(row['arguments'])}"]
    parts += [f"of these updated in place {format_bytes(row['updated'])}"] if row["updated"] else []
    parts += [f"padding {format_bytes(row['padding'])}"] if row["padding"] else []
    parts += [f"new results {format_bytes(row['outputs'] - row['aliased'])}"]
    parts += [f"temporaries {format_bytes(row['temporaries'])}"]
    parts += [f"code {format_bytes(row['code'])}"] if row["code"] else []
    parts += [f"other tensors {format_bytes(row['others'])}"] if row["others"] else []
    return f"{head} ({', '.join(parts)})"


def format_run_count(count: int) -> str:
    """Format a number of runs."""
    return "once" if count == 1 else f"{count} times"


def format_large_buffer(row: dict[str, Any]) -> str:
    """Format a large buffer with its source line."""
    return f"{format_bytes(row['bytes']):>10}  {row['what']}{'  ' + row['line'] if row['line'] else ''}"


def format_cost(row: dict[str, Any]) -> str:
    """Format the operations and bytes of a run."""
    unknown = f"; {row['unknown_loops']} loops with unknown trip count count once" if row["unknown_loops"] else ""
    unknown += f"; {row['unknown_kernels']} kernels with unknown cost count as zero" if row["unknown_kernels"] else ""
    return (
        f"{_format_rate(row['flops'])}FLOP, {_format_rate(row['products'])} of them in matmuls; "
        f"{_format_rate(row['bytes'])}B of HBM traffic; {row['intensity']:.1f} FLOP/B{unknown}"
    )


def format_time(row: dict[str, Any]) -> str:
    """Format the estimated time of a run, and the compile time."""
    found = row["work"]
    return (
        f"at least {format_duration(found['seconds'])} per run (estimate), at most {found['utilisation']:.1%} of the "
        f"peak; compiled in {row['compile_seconds']:.1f} s"
    )


def format_collective(row: dict[str, Any]) -> str:
    """Format the collectives of one kind."""
    return (
        f"{row['count']:g} × {row['kind']} among {row['group']}: {_format_rate(row['bytes'])}B, "
        f"at least {format_duration(row['seconds'])} (estimate)"
    )


def format_expensive_op(row: dict[str, Any], total: float) -> str:
    """Format an operation with its share of the program's time."""
    times = f" ({row['times']:g} times)" if row["times"] != 1 else ""
    return (
        f"{row['seconds'] / total:>4.0%} {format_duration(row['seconds']):>9}  {row['op'] or row['name']}{times}"
        f"{'  ' + row['line'] if row['line'] else ''}"
    )


def format_module(row: dict[str, Any], total: float) -> str:
    """Format a module, with its share of the program's time and the share of its backward pass in that."""
    share = row["backward"] / row["seconds"]
    backward = f", backward {share:.0%}" if share >= 0.01 else ""
    return (
        f"{row['seconds'] / total:>4.0%} {format_duration(row['seconds']):>9}  {row['module'] or NO_MODULE} "
        f"({_format_rate(row['flops'])}FLOP, {_format_rate(row['bytes'])}B{backward})"
    )


def format_duration(seconds: float) -> str:
    """Format seconds with the unit s, ms, µs or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _format_rate(value: float) -> str:
    """Format a number with a metric prefix: ``1.23 G``."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _section(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"  and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["", title, *(f"  {row}" for row in rows[:_ROWS]), *more]
