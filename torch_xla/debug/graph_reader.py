"""Parse graph dumps (XLA_SAVE_TENSORS_FILE, graph_saver) in the formats ``text`` and ``dot``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_xla._engine.graph.text_format import GraphLine

_SECTION = re.compile(r"^\[(\w+)\]\n(.*?)^## BEGIN_GRAPH\n(.*?)^## END_GRAPH$", re.DOTALL | re.MULTILINE)
_HASH = re.compile(r"^Graph Hash: (\w+)\n", re.MULTILINE)
_TEXT_LINE = re.compile(r"^ *%(\d+) = (.*?) (\w+::\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
_DOT_NODE = re.compile(r'^ *node(\d+) \[label="((?:[^"\\]|\\.)*)"\]', re.MULTILINE)
_DOT_EDGE = re.compile(r'^ *node(\d+) -> node(\d+)(?: \[label="(?:i=(\d+))?,?(?:o=(\d+))?"\])?', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of a dump. ``section`` and ``hash`` are empty in files written by graph_saver."""

    section: str
    hash: str
    lines: list[GraphLine]


def read_graphs(file: str | Path) -> list[Graph]:
    """Return the graphs of a file, in order.

    Args:
      file: a file that XLA_SAVE_TENSORS_FILE named.

    Raises:
      ValueError: the file has no graph in the format text or dot.
    """
    content = Path(file).read_text()
    sections = [(m[1], m[3]) for m in _SECTION.finditer(content)] or [("", content)]
    graphs = []
    for section, body in sections:
        found = _HASH.search(body)
        lines = _dot_lines(body) if body.lstrip().startswith("digraph") else _text_lines(body)
        if lines:
            graphs.append(Graph(section, found[1] if found else "", lines))
    if not graphs:
        raise ValueError(f"{file}: no graph in the format text or dot (XLA_SAVE_TENSORS_FMT, SAVE_GRAPH_FMT)")
    return graphs


def _text_lines(body: str) -> list[GraphLine]:
    lines = []
    for number, shape, op, operands, rest in _TEXT_LINE.findall(body):
        tags = dict(part.split("=", 1) for part in _split(rest.removeprefix(", ")) if "=" in part)
        root = tags.pop("ROOT", None)
        used = [_operand(o) for o in operands.split(", ") if o]
        lines.append(GraphLine(int(number), op, _split_shapes(shape), used, tags, None if root is None else int(root)))
    return lines


def _operand(text: str) -> tuple[int, int | None]:
    number, _, out = text.removeprefix("%").partition(".")
    return int(number), int(out) if out else None


def _split_shapes(shape: str) -> list[str]:
    return list(_split(shape[1:-1])) if shape.startswith("(") else [shape]


def _split(text: str) -> Iterator[str]:
    """Split at each ", " that is not inside brackets or quotes."""
    depth, quote, start = 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(", ", i):
            yield text[start:i]
            start = i + 2
    if text[start:]:
        yield text[start:]


def _dot_lines(body: str) -> list[GraphLine]:
    lines: dict[int, GraphLine] = {}
    for number, label in _DOT_NODE.findall(body):
        op, shape, *rest = (re.sub(r"\\(.)", r"\1", part) for part in label.split(r"\n"))
        tags = dict(part.split("=", 1) for part in rest if "=" in part)
        root = tags.pop("ROOT", None)
        lines[int(number)] = GraphLine(
            int(number), op, _split_shapes(shape), [], tags, None if root is None else int(root)
        )
    edges = [(int(to), int(i or 0), int(at), int(o) if o else None) for at, to, i, o in _DOT_EDGE.findall(body)]
    for to, _, at, out in sorted(edges, key=lambda edge: edge[:2]):
        lines[to].operands.append((at, out))
    return [lines[number] for number in sorted(lines)]
