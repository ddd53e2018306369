"""The pages that ``torch-xla explain`` prints: each slug in a message has one, and docs/reference/errors.md lists it.

tests/integration/test_docs.py runs their programs and checks their links.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "torch_xla" / "_engine" / "explain" / "pages"
SLUGS = sorted(path.stem for path in PAGES.glob("*.md"))


def _slugs_in_messages() -> set[str]:
    sources = [path for suffix in ("py", "cpp", "h") for path in (ROOT / "torch_xla").rglob(f"*.{suffix}")]
    return {slug for path in sources for slug in re.findall(r"torch-xla explain ([a-z][a-z-]*[a-z])", path.read_text())}


def test_each_message_has_a_page() -> None:
    assert _slugs_in_messages() <= set(SLUGS)


def test_each_page_is_listed() -> None:
    listed = re.findall(r"explain/pages/([a-z-]+)\.md", (ROOT / "docs" / "reference" / "errors.md").read_text())
    assert sorted(listed) == SLUGS
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [slug for slug in SLUGS if f"reference/errors/{slug}.md" not in navigation] == []


@pytest.mark.parametrize("slug", SLUGS)
def test_page_is_complete(slug: str) -> None:
    """It shows the message, the cause and a fix, in 150 to 350 words."""
    text = (PAGES / f"{slug}.md").read_text()
    assert text.startswith("# ")
    assert "```text\n" in text.partition("## Why it happens")[0]
    assert "## Fix it" in text or "## Find" in text
    assert 150 <= len(text.split()) <= 350
