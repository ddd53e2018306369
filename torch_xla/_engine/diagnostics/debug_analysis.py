"""PT_XLA_DEBUG: a block of text for each compilation (level 1) and execution (level 2): cause, graph, frames, sizes.

At the end of the process: what happened too often or took too long, a line each.
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
#: metric -> how often a step may have it; the first steps of a program compile.
_OFTEN = {
    "CompileTime": 0.5,
    "TransferFromServerTime": 1.5,
    "TransferToServerTime": 4.0,
    "TransferDeviceToDeviceTime": 1.0,
}
#: metric -> nanoseconds that one instance may take.
_SLOW = {"CompileTime": 300 * 10**9, "ExecuteTime": 30 * 10**9, "TransferFromServerTime": 10 * 10**9}


def debug_level() -> int:
    """0: nothing is analysed; 1: compilations; 2: executions as well."""
    set_to = settings.PT_XLA_DEBUG_LEVEL
    return (2 if settings.PT_XLA_DEBUG else 0) if set_to is None else set_to


def write_graph_block(title: str, cause: str, key: bytes, inputs: int, outputs: int) -> None:
    """The block before a compilation (title Compilation) or an execution (Execution)."""
    lines = [f"{title} Cause", f"  {cause}", "Graph Info:", f"  Graph Hash: {key.hex()}"]
    lines += [f"  Number of Graph Inputs: {inputs}", f"  Number of Graph Outputs: {outputs}"]
    lines += ["Python Frame Triggered Execution:", *(f"  {frame}" for frame in frame_lines())]
    _write(f"{title} Analysis", lines)


def write_size_block(inputs: int, outputs: int, aliased: int, temporary: int, program: int) -> None:
    """The block after a compilation. In bytes; written as GB of 2**30."""
    names = ["Graph input size", "Graph output size", "Aliased Input size", "Intermediate tensor size",
             "Compiled program size"]  # fmt: skip
    values = (inputs, outputs, aliased, temporary, program)
    _write("Post Compilation Analysis", [f"{n}: {v / 2**30:f} GB" for n, v in zip(names, values, strict=True)])


def frame_lines() -> list[str]:
    """``function (file:line)`` of the Python frames outside the engine, innermost first; PT_XLA_DEBUG_MAX_FRAME."""
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
    """Appends to PT_XLA_DEBUG_FILE (a process of several adds its number to the name), or writes to stderr."""
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
    """Writes the lines where analyses go."""
    steps = metrics.counters().get("MarkStep", 0)
    write("".join(f"{line}\n" for line in exit_summary(steps)))
