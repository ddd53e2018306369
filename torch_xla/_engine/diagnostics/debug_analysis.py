"""Write the PT_XLA_DEBUG analyses: a block of text per compilation (level 1) and execution (level 2).

A block has the cause, the graph, Python frames and sizes. At exit, one line for each metric that was too frequent or
too slow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.user_frames import ENGINE
from torch_xla._engine.diagnostics import metrics

_WIDTH = 80
_lock = fork_safe_lock()
#: metric -> tolerated number per step; the first steps of a program compile.
_MAX_PER_STEP = {
    "CompileTime": 0.5,
    "TransferFromServerTime": 1.5,
    "TransferToServerTime": 4.0,
    "TransferDeviceToDeviceTime": 1.0,
}
#: metric -> tolerated duration of one instance, in nanoseconds.
_MAX_DURATION = {"CompileTime": 300 * 10**9, "ExecuteTime": 30 * 10**9, "TransferFromServerTime": 10 * 10**9}


def debug_level() -> int:
    """Return 0 (no analyses), 1 (compilations) or 2 (compilations and executions)."""
    explicit = settings.PT_XLA_DEBUG_LEVEL
    return (2 if settings.PT_XLA_DEBUG else 0) if explicit is None else explicit


def write_graph_block(title: str, cause: str, key: bytes, inputs: int, outputs: int) -> None:
    """Write the block before a compilation (title ``Compilation``) or an execution (``Execution``)."""
    lines = [f"{title} Cause", f"  {cause}", "Graph Info:", f"  Graph Hash: {key.hex()}"]
    lines += [f"  Number of Graph Inputs: {inputs}", f"  Number of Graph Outputs: {outputs}"]
    lines += ["Python Frame Triggered Execution:", *(f"  {frame}" for frame in frame_lines())]
    _write(f"{title} Analysis", lines)


def write_size_block(inputs: int, outputs: int, aliased: int, temporary: int, program: int) -> None:
    """Write the block after a compilation: sizes in bytes, printed in GB of 2**30 bytes."""
    names = ["Graph input size", "Graph output size", "Aliased Input size", "Intermediate tensor size",
             "Compiled program size"]  # fmt: skip
    values = (inputs, outputs, aliased, temporary, program)
    _write("Post Compilation Analysis", [f"{n}: {v / 2**30:f} GB" for n, v in zip(names, values, strict=True)])


def frame_lines() -> list[str]:
    """Return ``function (file:line)`` of up to PT_XLA_DEBUG_MAX_FRAME user frames, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[str] = []
    while frame is not None and len(found) < settings.PT_XLA_DEBUG_MAX_FRAME:
        code = frame.f_code
        if not code.co_filename.startswith(ENGINE):
            found.append(f"{code.co_name} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return found


def _write(title: str, lines: Sequence[str]) -> None:
    rule = "=" * _WIDTH
    text = "".join(f"{title}: {line}\n" for line in (rule, *lines, "-" * _WIDTH, rule))
    write(text)


def write(text: str) -> None:
    """Append to PT_XLA_DEBUG_FILE (with several processes, suffixed ``.<local rank>``), or write to stderr."""
    path = settings.PT_XLA_DEBUG_FILE
    with _lock:
        if not path:
            sys.stderr.write(text)
            sys.stderr.flush()
            return
        if settings.WORLD_SIZE > 1:
            path = f"{path}.{settings.LOCAL_RANK}"
        with open(path, "a") as file:
            file.write(text)


def exit_summary(steps: int) -> list[str]:
    """Return the lines of the exit summary after ``steps`` steps."""
    found = metrics.metrics()
    out = []
    for name, most in _MAX_PER_STEP.items():
        count = found[name].total if name in found else 0
        if count > most * max(steps, 1) and count > 2:
            out.append(f"pt-xla-profiler: {name} too frequent: {count} counts during {steps} steps")
    for name, most in _MAX_DURATION.items():
        longest = max((v for _, v in found[name].data()[2]), default=0) if name in found else 0
        if longest > most:
            out.append(f"pt-xla-profiler: {name} too slow: longest instance took {metrics.format_time(longest)}")
    return out + _fallback_lines()


def _fallback_lines() -> list[str]:
    ops = {n: v for n, v in metrics.counters().items() if metrics.is_fallback(n) and n != "aten::_local_scalar_dense"}
    if not ops:
        return []
    rule = "-" * 80
    out = [f"pt-xla-profiler: Op(s) not lowered: {', '.join(ops)}; each call copies its inputs to the CPU and back"]
    table = [rule, "Unlowered Op usage summary (more of these ops, lower performance)"]
    table += [f"  {name}: {count}" for name, count in sorted(ops.items(), key=lambda item: -item[1])]
    return [*out, *(f"pt-xla-profiler: {line}" for line in (*table, rule))]


def write_exit_summary() -> None:
    """Write the exit summary to the destination of the analyses."""
    steps = metrics.counters().get("MarkStep", 0)
    write("".join(f"{line}\n" for line in exit_summary(steps)))
