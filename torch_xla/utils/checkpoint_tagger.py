"""Tag checkpoint files with names such as "best" and "last"; a file that loses its last tag is removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable


class CheckpointTagger:
    """Tags for files.

        tagger = CheckpointTagger()
        tagger.tag("last", path)  # deletes the file that was tagged "last" before, unless it has another tag

    Args:
      remover: called with the path of a file that has lost its last tag; default: os.remove.

    Examples:
      >>> import os
      >>> from torch_xla.utils.checkpoint_tagger import CheckpointTagger
      >>> tagger = CheckpointTagger()
      >>> for step in (1, 2):
      ...     path = f"step-{step}.pt"
      ...     open(path, "w").close()
      ...     tagger.tag("last", path)
      >>> os.path.exists("step-1.pt"), tagger.tags()
      (False, {'last': 'step-2.pt'})
    """

    def __init__(self, remover: Callable[[str], object] | None = None) -> None:
        self._remove = remover or os.remove
        self._tags: dict[str, str] = {}

    def tag(self, name: str, path: str) -> None:
        """Move the tag to this file.

        Args:
          name: the tag.
          path: the file.
        """
        path = os.fspath(path)
        before = self._tags.get(name)
        self._tags[name] = path
        if before is not None and before not in self._tags.values():
            self._remove(before)

    def tags(self) -> dict[str, str]:
        """Return the paths by tag."""
        return dict(self._tags)

    def save_to_json(self) -> str:
        """Return the tags as JSON text for load_from_json."""
        return json.dumps(self._tags)

    @staticmethod
    def load_from_json(str_json: str, remover: Callable[[str], object] | None = None) -> CheckpointTagger:
        """Return a tagger with the tags of the JSON text.

        Args:
          str_json: the text of a tagger.
          remover: called with the path of a file that lost its last tag; default: os.remove.

        Raises:
          ValueError: invalid text.
        """
        found = json.loads(str_json)
        if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
            raise ValueError(f"CheckpointTagger.load_from_json: expected paths by tag, got {str_json[:100]!r}")
        tagger = CheckpointTagger(remover)
        tagger._tags.update(found)
        return tagger
