"""Report why a graph of torch.compile runs operation by operation: the user's line, the reason, and what to do."""

from __future__ import annotations

import re
import traceback

import torch

from torch_xla._engine.base import messages, user_frames

_FIX = (
    "the results are equal, but each call records every operation: move that line out of the compiled function, or "
    "remove torch.compile: each step is one program without it"
)
_FILE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
#: Reasons that were reported: one line is often in a forward and in a backward graph.
_reported: set[str] = set()


def warn(module: torch.nn.Module, error: BaseException | None, reason: str) -> None:
    """Warn that the graph runs operation by operation, once for each line.

    Args:
      module: the graph.
      error: what the recording of the graph raised; its traceback leads to the operation.
      reason: the reason if there is no error.
    """
    line = _line_of(module, error) or user_frames.user_line()
    if line in _reported:
        return
    _reported.add(line)
    cause = reason if error is None else (str(error).strip().splitlines() or [type(error).__name__])[0]
    headline = f"torch.compile runs the graph with {line} operation by operation"
    messages.warn(messages.compose(headline, cause, _FIX))


def _line_of(module: torch.nn.Module, error: BaseException | None) -> str | None:
    """Return the user's line of the operation that raised, as "file:line"; of the last operation without an error."""
    if not isinstance(module, torch.fx.GraphModule):
        return None
    nodes = [node for node in module.graph.nodes if node.meta.get("stack_trace")]
    if error is not None:
        name = _raising_name(error)
        nodes = [node for node in nodes if node.name == name] or nodes
    for found in reversed(list(_FILE.finditer(nodes[-1].meta["stack_trace"])) if nodes else []):
        if user_frames.is_user_file(found["file"]):
            return f"{found['file']}:{found['line']}"
    return None


def _raising_name(error: BaseException | None) -> str | None:
    """Return the name of the node whose line of generated code raised, in the error or in one of its causes."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename.startswith("<eval_with_key>") and frame.line:
                return re.split(r"[=:;]", frame.line)[0].strip()
        error = error.__cause__ or error.__context__
    return None
