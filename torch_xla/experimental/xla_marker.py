"""Boundaries of patterns under upstream's name; see mark_pattern_utils.StableHLOCompositeBuilder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["BoundaryMetadata", "BoundaryMetadataSerializer"]


@dataclass
class BoundaryMetadata:
    """An input or a result of a marked region: its pattern, place, region and attributes."""

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[str, Any] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Writes BoundaryMetadata as JSON: ``json.dumps(metadata, cls=BoundaryMetadataSerializer)``."""

    def default(self, o: Any) -> Any:
        """Return the fields of the metadata as a dict. Raises TypeError for another object."""
        return asdict(o) if isinstance(o, BoundaryMetadata) else super().default(o)
