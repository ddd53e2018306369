"""Names such as "best" and "last" for files of checkpoints: a file that loses its last name is removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable


class CheckpointTagger:
    """Names for files.

        tagger = CheckpointTagger()
        tagger.tag("last", path)  # the file that was "last" before is deleted, unless it has another name

    Args:
      remover: called with the path of a file whose last name went to another; by default os.remove.
    """

    def __init__(self, remover: Callable[[str], object] | None = None) -> None:
        self._remove = remover or os.remove
        self._tags: dict[str, str] = {}

    def tag(self, name: str, path: str) -> None:
        """Gives the file that name, and takes it from the file that had it."""
        path = os.fspath(path)
        before = self._tags.get(name)
        self._tags[name] = path
        if before is not None and before not in self._tags.values():
            self._remove(before)

    def tags(self) -> dict[str, str]:
        """The paths by name."""
        return dict(self._tags)

    def save_to_json(self) -> str:
        """The names as a text, for load_from_json."""
        return json.dumps(self._tags)

    @staticmethod
    def load_from_json(str_json: str, remover: Callable[[str], object] | None = None) -> CheckpointTagger:
        """A tagger with the names of that text. Raises ValueError for another text."""
        found = json.loads(str_json)
        if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
            raise ValueError(f"CheckpointTagger.load_from_json: expected names with paths, got {str_json[:100]!r}")
        tagger = CheckpointTagger(remover)
        tagger._tags.update(found)
        return tagger
