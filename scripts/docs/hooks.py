"""What mkdocs does beside Markdown: links to files of the repository, and the page of environment variables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

#: A link to a file that is no page of the site: it stays as text.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without links that lead out of docs/, and without the marks that tests read."""
    return re.sub(r"^<!-- .* -->\n", "", _OUTSIDE.sub(r"\1 (`\2`)", markdown), flags=re.MULTILINE)
