"""Convert notebooks to Markdown pages of the site, with their outputs."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MAGIC = re.compile(r"^%.*\n", re.MULTILINE)


def convert(path: Path, page: str) -> tuple[str, dict[str, bytes]]:
    """Return the Markdown of a notebook, and its pictures by address.

    Args:
        path: The notebook.
        page: Address of the page, such as ``tutorials/start.md``. The pictures are placed beside it.
    """
    stem = page.removesuffix(".md")
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{_MAGIC.sub('', source).strip()}\n```")
        parts.extend(_output(output, stem, pictures) for output in _join_streams(cell.get("outputs", [])))
    return "\n\n".join(filter(None, parts)) + "\n", pictures


def _join_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive pieces of one stream, such as the lines of a loop that prints."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        text = "".join(output.get("text", ""))
        if found and "name" in output and found[-1].get("name") == output["name"]:
            found[-1]["text"] += text
        else:
            found.append(output | {"text": text})
    return found


def _output(output: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        address = f"{stem}-{len(pictures)}.png"
        pictures[address] = base64.b64decode(data["image/png"])
        return f"![Output of the cell above]({address.rpartition('/')[2]})"
    if "text/html" in data:
        html = "".join(data["text/html"])
        return f'<div class="output">{re.sub(chr(10) + "+", chr(10), html)}</div>'
    text = _ANSI.sub("", output["text"] or "".join(data.get("text/plain", ""))).strip("\n")
    return f"``` {{ .text .output }}\n{text}\n```" if text.strip() else ""
