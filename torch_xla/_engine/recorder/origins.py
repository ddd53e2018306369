"""Where recorded operations come from: the user's Python stack and the ``torch.nn`` module, noted with each node.

Off unless XLA_IR_DEBUG or XLA_HLO_DEBUG is set, or somebody calls capture(True). The recorder notes code objects and
instructions (csrc/origin.h); their lines are looked up here, when a graph is described.

    capture(True) -> every node and buffer made from then on has an Origin      None: made while nothing was captured
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from torch_xla._engine import recorder
from torch_xla._engine.base.frames import Frame, innermost_users
from torch_xla._engine.recorder import scopes


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
        return innermost_users(self.frames)

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


def capture(on: bool) -> None:
    """From now on, origins are captured or not; at any time, for all threads.

    Costs recording a fraction of a µs per operation, more with deep stacks; a forward of a module costs some µs more.
    """
    scopes.follow(on)
    recorder.module().set_capture(on)


def capturing() -> bool:
    """Whether origins are being captured."""
    return bool(recorder.module().capturing())


@functools.lru_cache(maxsize=1 << 16)
def origin(number: int) -> Origin | None:
    """The Origin of that number of the recorder's; None for 0."""
    found = recorder.module().origin(number)
    if found is None:
        return None
    scope, frames = found
    return Origin(tuple(Frame(*frame) for frame in frames), scopes.name(scope))


def described(origin: Origin | None) -> str:
    """`` (recorded at file.py:12, in Net/fc)`` for the end of a message; empty where nothing is known."""
    if origin is None:
        return ""
    parts = [f"recorded at {origin.line}"] if origin.line else []
    parts += [f"in {origin.scope}"] if origin.scope else []
    return f" ({', '.join(parts)})" if parts else ""
