"""Hooks of mkdocs: add pages from outside docs/, rewrite links, show the version, check the navigation."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import notebook_pages
import site_pages

ROOT = site_pages.ROOT

_MARKS = re.compile(
    r"^<!-- (not run|with clients|as a file.*|with \w+=.*|with warnings of torch|one program) -->\n", re.MULTILINE
)


def on_config(config: Any) -> Any:
    """Read the version, and fail if a page has no entry in the navigation."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "torch_xla" / "_version.py").read_text())
    assert version is not None
    config["extra"]["release"] = version[1]
    named = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages |= {page for page in site_pages.outside_pages().values() if not page.startswith("reference/errors/")}
    if missing := sorted(pages - named):
        raise PluginError(f"add to nav in mkdocs.yml: {', '.join(missing)}")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks and other pages from outside docs/."""
    for source, page in site_pages.outside_pages().items():
        path = ROOT / source
        if path.suffix == ".ipynb":
            text, pictures = notebook_pages.convert(path, page)
            for address, content in pictures.items():
                files.append(File.generated(config, address, content=content))
        else:
            text = path.read_text()
        start = f"docs/{page}" if page.startswith("reference/errors/") else source  # `torch-xla explain` has the same
        files.append(File.generated(config, page, content=site_pages.rewrite_links(text, start, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page as the site shows it: without the marks of the tests, with links that work."""
    address = page.file.src_uri
    if address == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if address not in site_pages.outside_pages().values():
        markdown = site_pages.rewrite_links(markdown, f"docs/{address}", address)
    return _MARKS.sub("", markdown)
