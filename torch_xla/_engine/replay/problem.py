"""Why a call of a step cannot be replayed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Problem:
    """What happens in a recorded call that a replay would not do, and what to write instead."""

    cause: str
    fix: str
    lasting: bool = True  # False: the next call may differ, as after the first step of an optimizer
