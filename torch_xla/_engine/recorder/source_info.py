"""Source information of recorded operations: the user's Python stack and the ``torch.nn`` module of each node.

Off unless XLA_IR_DEBUG or XLA_HLO_DEBUG is set, or set_capture(True) is called. The recorder stores code objects and
instruction offsets (csrc/ir/source_location.h); this module resolves them to lines when a graph is printed.

    set_capture(True) -> every node and buffer made from then on has an Origin; earlier ones have None
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from torch_xla._engine import recorder
from torch_xla._engine.base.user_frames import Frame, innermost_user_frame
from torch_xla._engine.recorder import module_scopes


@dataclass(frozen=True, slots=True)
class Origin:
    """The source location of a value: Python frames and module scope.

    ``frames`` are innermost first and include torch's; ``scope`` is, for example, "Net/layers.0/fc". Operations of a
    backward pass have the frames of the backward() call, and the scopes of their forward operations:
    "backward/Net/layers.0/fc".
    """

    frames: tuple[Frame, ...]
    scope: str

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of user code."""
        return innermost_user_frame(self.frames)

    @property
    def line(self) -> str | None:
        """The user's line as ``/path/file.py:12``; None if no user code was running."""
        frame = self.frame
        return None if frame is None else f"{frame.file}:{frame.line}"

    @property
    def short(self) -> str | None:
        """The user's line as ``function@file.py:12``, the format of graph dumps."""
        frame = self.frame
        return None if frame is None else f"{frame.function}@{os.path.basename(frame.file)}:{frame.line}"


def set_capture(on: bool) -> None:
    """Turn the capture of source locations on or off, for all threads.

    Capturing costs a fraction of a µs per operation, more for deep stacks, and a few µs per module forward.
    """
    module_scopes.track_modules(on)
    recorder.bindings().set_capture(on)


def is_capturing() -> bool:
    """Return whether source locations are captured."""
    return bool(recorder.bindings().is_capturing())


@functools.lru_cache(maxsize=1 << 16)
def origin_from_id(number: int) -> Origin | None:
    """Return the Origin with that id; None for 0."""
    found = recorder.bindings().origin(number)
    if found is None:
        return None
    scope, frames = found
    return Origin(tuple(Frame(*frame) for frame in frames), module_scopes.scope_name(scope))


def format_location(origin: Origin | None) -> str:
    """Return a suffix for messages, `` (recorded at file.py:12, in Net/fc)``; empty if the origin is unknown."""
    if origin is None:
        return ""
    parts = [f"recorded at {origin.line}"] if origin.line else []
    parts += [f"in {origin.scope}"] if origin.scope else []
    return f" ({', '.join(parts)})" if parts else ""
