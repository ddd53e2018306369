"""The pages about errors and warnings that ``torch-xla explain SLUG`` prints: ``pages/SLUG.md``, part of the package.

The site shows the same pages under reference/errors/. Imports neither torch nor jax.
"""

from __future__ import annotations

import difflib
import importlib.resources
import posixpath
import re

_SITE_FOLDER = "docs/reference/errors"  # where links of a page start
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class UnknownPageError(LookupError):
    """There is no page with this name. The message names the closest one."""


def page_titles() -> dict[str, str]:
    """Return the title of each page by its slug, sorted by slug."""
    pages = importlib.resources.files(__name__).joinpath("pages")
    files = [file for file in pages.iterdir() if file.name.endswith(".md")] if pages.is_dir() else []
    titles = {file.name.removesuffix(".md"): _title(file.read_text(encoding="utf-8")) for file in files}
    return dict(sorted(titles.items()))


def read_page(slug: str) -> str:
    """Return a page as Markdown for a terminal: without comments, and with links as text.

    Raises:
        UnknownPageError: There is no such page.
    """
    slugs = list(page_titles())
    wanted = slug.strip().lower().replace("_", "-").replace(" ", "-").removesuffix(".md")
    if wanted not in slugs:
        raise UnknownPageError(f"there is no page {slug!r}. {_suggest(wanted, slugs)}")
    file = importlib.resources.files(__name__).joinpath("pages", f"{wanted}.md")
    text = _COMMENT.sub("", _FRONT_MATTER.sub("", file.read_text(encoding="utf-8")))
    return _LINK.sub(_link_as_text, text).strip() + "\n"


def _suggest(wanted: str, slugs: list[str]) -> str:
    near = difflib.get_close_matches(wanted, slugs, 1) or [slug for slug in slugs if wanted and wanted in slug][:1]
    return f"Did you mean {near[0]}?" if near else "`torch-xla explain` lists the pages"


def _title(text: str) -> str:
    found = _TITLE.search(text)
    return found[1].replace("`", "") if found else ""


def _link_as_text(match: re.Match[str]) -> str:
    """Return a link as its text and its target: an address, a slug to explain, or a file of the repository."""
    text, target = match[1], match[2]
    if "://" in target:
        return f"{text} ({target})"
    path, _, anchor = target.partition("#")
    if not path:
        return text
    if "/" not in path and path.endswith(".md"):
        return f"{text} (torch-xla explain {path.removesuffix('.md')})"
    found = posixpath.normpath(posixpath.join(_SITE_FOLDER, path))
    return f"{text} ({found}{'#' + anchor if anchor else ''})"
