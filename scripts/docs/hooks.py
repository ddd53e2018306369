"""What mkdocs does beside Markdown: the table of environment variables, links out of docs/, pages without a place."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]

_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")
_MARKS = re.compile(r"^<!-- (not run|with clients|as a file.*|with \w+=.*|one program) -->\n", re.MULTILINE)
_TABLE = "<!-- the table of settings -->"


def on_config(config: Any) -> Any:
    """Fail if a page has no entry in the navigation."""
    named = set(re.findall(r"[\w/]+\.md", str(config["nav"])))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    if missing := sorted(pages - named):
        raise PluginError(f"add to nav in mkdocs.yml: {', '.join(missing)}")
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page as the site shows it. A link to a file outside docs/ becomes text."""

    def unlink(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[2]))
        return match[1] if target.startswith("..") else match[0]

    if _TABLE in markdown:
        markdown = markdown.replace(_TABLE, variables())
    return _MARKS.sub("", _RELATIVE_LINK.sub(unlink, markdown))


def variables() -> str:
    """The environment variables as a table in Markdown."""
    # The table by its file: importing the package would import torch.
    name = "torch_xla_settings"
    spec = importlib.util.spec_from_file_location(name, ROOT / "torch_xla/_engine/base/settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for variable in module.variables():
        also = "".join(f", `{alias}`" for alias in variable.aliases)
        text = f"{variable.meaning}. Expects {variable.kind.form}."
        if variable.deprecated:
            text += f" Replaces {', '.join(variable.deprecated)} (deprecated)."
        default = f"`{variable.default}`" if variable.default else ""
        rows.append(
            f"| `{variable.name}`{also} | {default} | {escape(text, quote=False).replace('|', chr(92) + '|')} |"
        )
    return "\n".join(rows)
