"""The forms of a graph dump that are made of Lines: text and Graphviz; and the hashes in its header."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from torch_xla._engine.graph.ir import NUMBERS, Line
from torch_xla._engine.graph.program import GraphSpec

_MAX_TAG = 64  # characters of a tag's value in Graphviz


def text(lines: Iterable[Line]) -> str:
    """The form ``text`` of a dump, ``IR { ... }``."""
    rows = ["IR {"]
    for line in lines:
        operands = ", ".join(f"%{n}" if out is None else f"%{n}.{out}" for n, out in line.operands)
        tags = "".join(f", {name}={value}" for name, value in line.tags.items())
        root = "" if line.root is None else f", ROOT={line.root}"
        rows.append(f"  %{line.number} = {line.shape} {line.op}({operands}){tags}{root}")
    return "\n".join([*rows, "}"]) + "\n"


def dot(lines: list[Line]) -> str:
    """The form ``dot`` of a dump, for Graphviz."""
    rows = ["digraph G {"]
    for line in lines:
        label = [line.op, line.shape]
        label += [f"{k}={v if len(v) <= _MAX_TAG else v[:_MAX_TAG] + '...'}" for k, v in line.tags.items()]
        label += [] if line.root is None else [f"ROOT={line.root}"]
        escaped = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in label)
        rows.append(f'  node{line.number} [label="{escaped}"]')
    for line in reversed(lines):
        for i, (source, out) in enumerate(line.operands):
            parts = [f"i={i}"] if len(line.operands) > 1 else []
            parts += [] if out is None else [f"o={out}"]
            label_text = f' [label="{",".join(parts)}"]' if parts else ""
            rows.append(f"  node{source} -> node{line.number}{label_text}")
    return "\n".join([*rows, "}"]) + "\n"


def root_hashes(spec: GraphSpec) -> list[str]:
    """128 bits in hexadecimal for each root: of the computation that leads to it."""

    def digest(value: object) -> str:
        return blake2b(repr(value).encode(), digest_size=16).hexdigest()

    hashes = [digest(("leaf", i, leaf)) for i, leaf in enumerate(spec.leaves)]

    def wired(arg: tuple[int, Any]) -> Any:
        tag, payload = arg
        if tag == 1:
            return hashes[payload]
        return (tag, [wired(a) for a in payload] if tag in (2, 7) else tag in NUMBERS or payload)

    for node in spec.nodes:  # each needs those before it
        hashes += [digest((node.op, node.form, [wired(a) for a in node.args], node.outs))]
    return [hashes[root] for root in spec.roots]
