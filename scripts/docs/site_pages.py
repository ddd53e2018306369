"""Pages of the site whose sources are outside docs/, and the links between all pages."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {
    "notebooks/00_start.ipynb": "tutorials/start.md",
    "notebooks/01_image_classifier.ipynb": "tutorials/image_classifier.md",
    "notebooks/02_several_devices.ipynb": "tutorials/several_devices.md",
    "notebooks/03_resnet.ipynb": "tutorials/resnet.md",
    "notebooks/04_fine_tune_a_transformer.ipynb": "tutorials/fine_tune_a_transformer.md",
    "notebooks/05_why_was_it_slow.ipynb": "tutorials/why_was_it_slow.md",
}
_ERRORS = "torch_xla/_engine/explain/pages"
_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])+)\]\(([^)\s]+)\)")


def outside_pages() -> dict[str, str]:
    """Return the address on the site of each source outside docs/."""
    errors = {
        f"{_ERRORS}/{path.name}": f"reference/errors/{path.name}" for path in sorted((ROOT / _ERRORS).glob("*.md"))
    }
    return {
        **NOTEBOOKS,
        **errors,
        "examples/README.md": "tutorials/examples.md",
        "CHANGELOG.md": "project/changelog.md",
        "CONTRIBUTING.md": "project/contributing.md",
    }


def rewrite_links(markdown: str, source: str, page: str) -> str:
    """Return the page with links that work on the site.

    A link to a file that the site lacks leads to the repository if the environment variable REPOSITORY_URL is set, else
    it becomes text.

    Args:
        markdown: Text of the page.
        source: The file, relative to the root of the repository, where its links start.
        page: Its address, relative to the root of the site.
    """
    pages = outside_pages()

    def replace(match: re.Match[str]) -> str:
        text, link = match[1], match[2]
        if re.match(r"[a-z]+:|#|/", link):
            return match[0]
        file, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        address = target.removeprefix("docs/") if target.startswith("docs/") else pages.get(target)
        if address is not None:
            relative = posixpath.relpath(address, posixpath.dirname(page) or ".")
            return f"[{text}]({relative}{'#' + anchor if anchor else ''})"
        repository = os.environ.get("REPOSITORY_URL")
        return f"[{text}]({repository.rstrip('/')}/blob/main/{target})" if repository else text

    return _outside_fences(markdown, lambda part: _LINK.sub(replace, part))


def _outside_fences(markdown: str, function: Callable[[str], str]) -> str:
    """Return the text with a function applied to all of it but the fenced code."""
    parts: list[str] = []
    text: list[str] = []
    fence = ""
    for line in markdown.splitlines(keepends=True):
        start = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            parts.append(line)
            if start and start[1] == fence:
                fence = ""
        elif start:
            parts += [function("".join(text)), line]
            text, fence = [], start[1]
        else:
            text.append(line)
    return "".join([*parts, function("".join(text))])
