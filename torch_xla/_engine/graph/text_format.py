"""A graph as text, in the forms of graph dumps and for Graphviz: one Line for each operation, input and constant.

    %4 = f32[2,4]{1,0} aten::addmm(%1, %2, %3), scope=Net/fc, location=forward@net.py:12, xla_shape=..., ROOT=0

The recorder has neither nodes for a program's inputs nor for constants; here both are lines. Inputs, and numbers that
are inputs, are ``xla::device_data``; numbers that the program contains are ``prim::Constant``. Operands come before
users. A write through a view is ``xla::update_view``, with the base and the new value of the view as its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.graph.graph_spec import SCATTER, GraphSpec, NodeSpec
from torch_xla._engine.lowering import decompose
from torch_xla._engine.lowering.registry import Promise

_NUMPY_NAMES = {"bool": "pred", "float": "f", "int": "s", "uint": "u", "complex": "c", "bfloat": "bf"}
#: The shapes of number operands, by their tag.
NUMBERS = {3: "f64[]", 4: "s64[]", 5: "c128[]"}
_MAX_TAG = 64  # characters of a tag's value in Graphviz


@dataclass(slots=True)
class GraphLine:
    """One node of a dump. ``operands`` are (line, result number or None where it has only one result)."""

    number: int
    op: str
    shapes: list[str]
    operands: list[tuple[int, int | None]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    root: int | None = None

    @property
    def shape(self) -> str:
        return self.shapes[0] if len(self.shapes) == 1 else f"({', '.join(self.shapes)})"


def dtype_name(dtype: torch.dtype) -> str:
    """XLA's name: ``f32``, ``bf16``, ``s64``, ``pred``."""
    name = dtypes.storage_numpy_dtype(dtype).name
    if name.startswith("float8"):
        return name.replace("float8_", "f8")
    letters = name.rstrip("0123456789")
    return _NUMPY_NAMES[letters] + name[len(letters) :]


def shape_name(promise: Promise) -> str:
    """``f32[2,4]{1,0}``: dtype, sizes, and the order of the dimensions in memory."""
    shape, dtype = promise
    if dtype is None:
        return "opaque[]"
    layout = f"{{{','.join(str(i) for i in reversed(range(len(shape))))}}}" if shape else ""
    return f"{dtype_name(dtype)}[{','.join(map(str, shape))}]{layout}"


@functools.lru_cache(maxsize=4096)
def _schema_arguments(op: str) -> tuple[tuple[str, str, Any], ...]:
    """(name, type, default) of each argument of an operator; nothing for one that torch.ops does not have."""
    try:
        schema = dispatcher.schema(decompose.overload(op))
    except AttributeError:
        return ()
    return tuple((a.name, str(a.type), a.default_value if a.has_default_value() else None) for a in schema.arguments)


class _GraphPrinter:
    """Turns a GraphSpec into lines, inputs and numbers where they are first used."""

    def __init__(self, spec: GraphSpec, device: str) -> None:
        self.spec, self.device = spec, device
        self.lines: list[GraphLine] = []
        self.at: dict[int, tuple[int, int | None]] = {}  # value number -> (line, result number)
        self.numbers: dict[tuple[int, int], int] = {}
        self.constants: dict[tuple[str, str], int] = {}

    def write(self) -> list[GraphLine]:
        for position, node in enumerate(self.spec.nodes, len(self.spec.leaves)):
            self.node(position, node)
        for i, root in enumerate(self.spec.roots):
            self.lines[self.value(root)[0]].root = i
        return self.lines

    def add(self, op: str, shapes: list[str], operands: list[tuple[int, int | None]], tags: dict[str, str]) -> int:
        self.lines.append(GraphLine(len(self.lines), op, shapes, operands, tags))
        return len(self.lines) - 1

    def value(self, position: int) -> tuple[int, int | None]:
        if position not in self.at:
            shape = shape_name(self.spec.leaves[position])
            tags = {"xla_shape": shape, "device": self.device}
            origin = self.spec.leaf_origins[position] if self.spec.leaf_origins else None
            if origin is not None and origin.short:
                tags = {"location": origin.short} | tags
            self.at[position] = (self.add("xla::device_data", [shape], [], tags), None)
        return self.at[position]

    def number(self, tag: int, index: int) -> int:
        if (tag, index) not in self.numbers:
            shape = NUMBERS[tag]
            self.numbers[tag, index] = self.add(
                "xla::device_data", [shape], [], {"xla_shape": shape, "device": self.device}
            )
        return self.numbers[tag, index]

    def constant(self, value: Any) -> int:
        shape = {bool: "pred[]", int: "s64[]", float: "f64[]", complex: "c128[]"}[type(value)]
        key = (shape, repr(value))
        if key not in self.constants:
            self.constants[key] = self.add("prim::Constant", [shape], [], {"xla_shape": shape, "value": repr(value)})
        return self.constants[key]

    def node(self, position: int, node: NodeSpec) -> None:
        if node.op == "torch_xla::getitem":
            self.at[position] = (self.value(node.args[0][1])[0], node.args[1][1])
            return
        if node.op == "torch_xla::seed":
            self.at[position] = (self.number(*node.args[0]), None)
            return
        operands: list[tuple[int, int | None]] = []
        attributes: dict[str, str] = {}
        arguments = _schema_arguments(node.op)
        for i, arg in enumerate(node.args):
            name, kind, default = arguments[i] if i < len(arguments) else (f"argument{i}", "", None)
            self.argument(name, kind, default, arg, operands, attributes)
        name = node.op.split(".")[0]
        if 0 < len(arguments) < len(node.args):
            if node.form == SCATTER:
                attributes["view"], name = name, "xla::update_view"
                attributes["result"] = attributes.pop(f"argument{len(node.args) - 1}")
            else:
                attributes["offset"] = attributes.pop(f"argument{len(node.args) - 1}")
        shapes = [shape_name(out) for out in node.outs]
        line = self.add(name, shapes, operands, {})
        self.lines[line].tags = _tags(node, self.lines[line].shape) | attributes
        self.at[position] = (line, None)

    def argument(
        self, name: str, kind: str, default: Any, arg: tuple[int, Any], operands: list[tuple[int, int | None]],
        attributes: dict[str, str],
    ) -> None:  # fmt: skip
        tag, payload = arg
        if tag == 1:
            operands.append(self.value(payload))
        elif tag in (2, 7):
            for item in payload:
                self.argument(name, kind, default, item, operands, attributes)
        elif tag in NUMBERS:
            operands.append((self.number(tag, payload), None))
        elif tag == 6:
            attributes[name] = dtype_name(dtypes.FROM_CODE[payload])
        elif payload is not None:
            if isinstance(payload, (int, float, complex)) and any(t in kind for t in ("Tensor", "number")):
                operands.append((self.constant(payload), None))
            elif payload != default:
                attributes[name] = _format_value(payload)


def _tags(node: NodeSpec, shape: str) -> dict[str, str]:
    tags = {}
    if len(node.outs) > 1:
        tags["num_outputs"] = str(len(node.outs))
    if node.origin is not None and node.origin.scope:
        tags["scope"] = node.origin.scope
    if node.origin is not None and node.origin.short:
        tags["location"] = node.origin.short
    tags["xla_shape"] = shape
    return tags


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_format_value, value))})"
    return repr(value)


def graph_lines(spec: GraphSpec, device: str) -> list[GraphLine]:
    """The lines of a graph on ``device`` (its hardware: ``CPU:0``), operands before users."""
    return _GraphPrinter(spec, device).write()


def to_text(lines: Iterable[GraphLine]) -> str:
    """The form ``text`` of a dump, ``IR { ... }``."""
    rows = ["IR {"]
    for line in lines:
        operands = ", ".join(f"%{n}" if out is None else f"%{n}.{out}" for n, out in line.operands)
        tags = "".join(f", {name}={value}" for name, value in line.tags.items())
        root = "" if line.root is None else f", ROOT={line.root}"
        rows.append(f"  %{line.number} = {line.shape} {line.op}({operands}){tags}{root}")
    return "\n".join([*rows, "}"]) + "\n"


def to_dot(lines: list[GraphLine]) -> str:
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
