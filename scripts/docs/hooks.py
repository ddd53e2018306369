"""What mkdocs does beside Markdown: the table of environment variables, links out of docs/, pages without a place."""

from __future__ import annotations

import importlib.util
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: A link to a file that is no page of the site stays as text.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")
_MARKS = re.compile(r"^<!-- (not run|with clients|as a file.*|with \w+=.*|one program) -->\n", re.MULTILINE)
_TABLE = "<!-- the table of settings -->"


def on_config(config: Any) -> Any:
    """Adds pages that mkdocs.yml does not name, to the guides: a new one is there before somebody finds it a place."""
    named = set(re.findall(r"[\w/]+\.md", str(config["nav"])))
    others = [p.name for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in named]
    guides = next(part["Guides"] for part in config["nav"] if isinstance(part, dict) and "Guides" in part)
    guides += others
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as the site shows it."""
    if _TABLE in markdown:
        markdown = markdown.replace(_TABLE, variables())
    return _MARKS.sub("", _OUTSIDE.sub(r"\1", markdown))


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
