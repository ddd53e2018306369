"""Where recorded operations come from: the user's Python stack and the ``torch.nn`` module, noted with each node.

Off unless XLA_IR_DEBUG or XLA_HLO_DEBUG is set, or somebody calls capture(True). The recorder notes code objects and
instructions (csrc/ir/source_location.h); their lines are looked up here, when a graph is described.

    capture(True) -> every node and buffer made from then on has an Origin      None: made while nothing was captured
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
    """Where a value was recorded. ``frames`` are innermost first, with torch's; ``scope`` is like "Net/layers.0/fc".

    A backward pass has the lines of its call, and the scopes of the forward operations: "backward/Net/layers.0/fc".
    """

    frames: tuple[Frame, ...]
    scope: str

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the user's."""
        return innermost_user_frame(self.frames)

    @property
    def line(self) -> str | None:
        """``/path/file.py:12``, the user's line; None where no Python of the user's was running."""
        frame = self.frame
        return None if frame is None else f"{frame.file}:{frame.line}"

    @property
    def short(self) -> str | None:
        """``function@file.py:12``, as graph dumps show it."""
        frame = self.frame
        return None if frame is None else f"{frame.function}@{os.path.basename(frame.file)}:{frame.line}"


def set_capture(on: bool) -> None:
    """From now on, origins are captured or not; at any time, for all threads.

    Costs recording a fraction of a µs per operation, more with deep stacks; a forward of a module costs some µs more.
    """
    module_scopes.track_modules(on)
    recorder.bindings().set_capture(on)


def is_capturing() -> bool:
    """Whether origins are being captured."""
    return bool(recorder.bindings().is_capturing())


@functools.lru_cache(maxsize=1 << 16)
def origin_from_id(number: int) -> Origin | None:
    """The Origin of that number of the recorder's; None for 0."""
    found = recorder.bindings().origin(number)
    if found is None:
        return None
    scope, frames = found
    return Origin(tuple(Frame(*frame) for frame in frames), module_scopes.scope_name(scope))


def format_location(origin: Origin | None) -> str:
    """`` (recorded at file.py:12, in Net/fc)`` for the end of a message; empty where nothing is known."""
    if origin is None:
        return ""
    parts = [f"recorded at {origin.line}"] if origin.line else []
    parts += [f"in {origin.scope}"] if origin.scope else []
    return f" ({', '.join(parts)})" if parts else ""
