"""PT_XLA_DEBUG at the end of the process: what happened too often or took too long, a line each."""

from __future__ import annotations

from torch_xla._engine.diagnostics import analysis, metrics

#: metric -> how often a step may have it; the first steps of a program compile.
_OFTEN = {
    "CompileTime": 0.5,
    "TransferFromServerTime": 1.5,
    "TransferToServerTime": 4.0,
    "TransferDeviceToDeviceTime": 1.0,
}
#: metric -> nanoseconds that one instance may take.
_SLOW = {"CompileTime": 300 * 10**9, "ExecuteTime": 30 * 10**9, "TransferFromServerTime": 10 * 10**9}


def lines(steps: int) -> list[str]:
    """The lines for a process that has had so many steps."""
    found = metrics.metrics()
    out = []
    for name, most in _OFTEN.items():
        count = found[name].total if name in found else 0
        if count > most * max(steps, 1) and count > 2:
            out.append(f"pt-xla-profiler: {name} too frequent: {count} counts during {steps} steps")
    for name, most in _SLOW.items():
        longest = max((v for _, v in found[name].data()[2]), default=0) if name in found else 0
        if longest > most:
            out.append(f"pt-xla-profiler: {name} too slow: longest instance took {metrics.format_time(longest)}")
    return out + _not_lowered()


def _not_lowered() -> list[str]:
    ops = {n: v for n, v in metrics.counters().items() if n.startswith("aten::") and n != "aten::_local_scalar_dense"}
    if not ops:
        return []
    rule = "-" * 80
    out = [f"pt-xla-profiler: Op(s) not lowered: {', '.join(ops)}; each call copies its inputs to the CPU and back"]
    table = [rule, "Unlowered Op usage summary (more of these ops, lower performance)"]
    table += [f"  {name}: {count}" for name, count in sorted(ops.items(), key=lambda item: -item[1])]
    return [*out, *(f"pt-xla-profiler: {line}" for line in (*table, rule))]


def write() -> None:
    """Writes the lines where analyses go."""
    steps = metrics.counters().get("MarkStep", 0)
    analysis.write("".join(f"{line}\n" for line in lines(steps)))
