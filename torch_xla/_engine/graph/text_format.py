"""Format a graph as text or Graphviz source for graph dumps: one GraphLine per operation, input and constant.

    %4 = f32[2,4]{1,0} aten::addmm(%1, %2, %3), scope=Net/fc, location=forward@net.py:12, xla_shape=..., ROOT=0

The recorder has no nodes for inputs and constants; a dump has a line for each of them. Tensor inputs and scalar inputs
are ``xla::device_data``; constants of the program are ``prim::Constant``. Operands precede their users. A write through
a view is ``xla::update_view``; its operands are the base tensor and the new value of the view.
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
from torch_xla._engine.graph.graph_spec import LIST_TAGS, SCATTER, ArgTag, GraphSpec, NodeSpec
from torch_xla._engine.lowering import decompose
from torch_xla._engine.lowering.registry import TensorSpec

_NUMPY_NAMES = {"bool": "pred", "float": "f", "int": "s", "uint": "u", "complex": "c", "bfloat": "bf"}
_SCALAR_SHAPES: dict[int, str] = {
    ArgTag.FLOAT_INPUT: "f64[]",
    ArgTag.INT_INPUT: "s64[]",
    ArgTag.COMPLEX_INPUT: "c128[]",
}
_MAX_LABEL = 64  # characters of an attribute value in Graphviz


@dataclass(slots=True)
class GraphLine:
    """One node of a dump. ``operands`` are (line number, result index or None if that line has one result)."""

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
    """Return XLA's name of a dtype: ``f32``, ``bf16``, ``s64``, ``pred``."""
    name = dtypes.storage_numpy_dtype(dtype).name
    if name.startswith("float8"):
        return name.replace("float8_", "f8")
    letters = name.rstrip("0123456789")
    return _NUMPY_NAMES[letters] + name[len(letters) :]


def shape_name(spec: TensorSpec) -> str:
    """Return XLA's shape string, ``f32[2,4]{1,0}``: dtype, sizes and minor-to-major order."""
    shape, dtype = spec
    if dtype is None:
        return "opaque[]"
    layout = f"{{{','.join(str(i) for i in reversed(range(len(shape))))}}}" if shape else ""
    return f"{dtype_name(dtype)}[{','.join(map(str, shape))}]{layout}"


@functools.lru_cache(maxsize=4096)
def _schema_arguments(op: str) -> tuple[tuple[str, str, Any], ...]:
    """Return (name, type, default) of each argument of an operator; empty if torch.ops does not have it."""
    try:
        schema = dispatcher.schema(decompose.overload(op))
    except AttributeError:
        return ()
    return tuple((a.name, str(a.type), a.default_value if a.has_default_value() else None) for a in schema.arguments)


class _GraphPrinter:
    """Convert a GraphSpec to lines. Inputs and constants precede their first user."""

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
            shape = _SCALAR_SHAPES[tag]
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
            if node.schema_kind == SCATTER:
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
        if tag == ArgTag.VALUE:
            operands.append(self.value(payload))
        elif tag in LIST_TAGS:
            for item in payload:
                self.argument(name, kind, default, item, operands, attributes)
        elif tag in _SCALAR_SHAPES:
            operands.append((self.number(tag, payload), None))
        elif tag == ArgTag.DTYPE:
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
    """Return the lines of a graph, operands before users; ``device`` names the hardware, such as ``CPU:0``."""
    return _GraphPrinter(spec, device).write()


def to_text(lines: Iterable[GraphLine]) -> str:
    """Return a dump in the ``text`` format, ``IR { ... }``."""
    rows = ["IR {"]
    for line in lines:
        operands = ", ".join(f"%{n}" if out is None else f"%{n}.{out}" for n, out in line.operands)
        tags = "".join(f", {name}={value}" for name, value in line.tags.items())
        root = "" if line.root is None else f", ROOT={line.root}"
        rows.append(f"  %{line.number} = {line.shape} {line.op}({operands}){tags}{root}")
    return "\n".join([*rows, "}"]) + "\n"


def to_dot(lines: list[GraphLine]) -> str:
    """Return a dump in the ``dot`` format of Graphviz."""
    rows = ["digraph G {"]
    for line in lines:
        label = [line.op, line.shape]
        label += [f"{k}={v if len(v) <= _MAX_LABEL else v[:_MAX_LABEL] + '...'}" for k, v in line.tags.items()]
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
    """Return a 128-bit hexadecimal hash of the computation of each root."""

    def digest(value: object) -> str:
        return blake2b(repr(value).encode(), digest_size=16).hexdigest()

    hashes = [digest(("leaf", i, leaf)) for i, leaf in enumerate(spec.leaves)]

    def wired(arg: tuple[int, Any]) -> Any:
        tag, payload = arg
        if tag == ArgTag.VALUE:
            return hashes[payload]
        return (tag, [wired(a) for a in payload] if tag in LIST_TAGS else tag in _SCALAR_SHAPES or payload)

    for node in spec.nodes:  # in topological order
        hashes += [digest((node.op, node.schema_kind, [wired(a) for a in node.args], node.outs))]
    return [hashes[root] for root in spec.roots]
