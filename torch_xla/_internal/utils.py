"""Parsing of device names."""

from __future__ import annotations

import re


def parse_xla_device(device: str) -> tuple[str, int] | None:
    """Return the kind and the ordinal of a hardware device such as ``TPU:3``; None for another text."""
    found = re.fullmatch(r"([A-Z]+):(\d+)", device)
    return (found[1], int(found[2])) if found else None
