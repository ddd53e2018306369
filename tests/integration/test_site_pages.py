"""Each page of docs/ has a heading and text: no placeholder remains, and the navigation lists each page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

DOCS = ROOT / "docs"
_WORDS = 80
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(DOCS))) for path in PAGES])
def test_page_is_written(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    if path.parent != DOCS / "reference" / "api":  # filled from docstrings
        assert len(text.split()) >= _WORDS


def test_pages_are_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {str(path.relative_to(DOCS)) for path in PAGES} <= set(listed)
