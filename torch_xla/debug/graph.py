"""Draw dumped graphs with Graphviz: a box per operation, grouped by torch.nn module, with details as tooltips.

    XLA_IR_DEBUG=1 XLA_SAVE_TENSORS_FILE=graphs.txt python train.py
    python -m torch_xla.debug.graph graphs.txt.0                      # list the graphs in the file of rank 0
    python -m torch_xla.debug.graph graphs.txt.0 --graph 2 --svg step.svg

Drawing needs Graphviz (``apt-get install graphviz``). Modules are recorded only with XLA_IR_DEBUG=1.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from torch_xla._engine.graph.text_format import GraphLine
from torch_xla.debug.graph_reader import Graph, read_graphs

_COLORS = {
    "#fde0c5": ("mm", "bmm", "addmm", "baddbmm", "convolution", "linear", "convolution_backward", "dot"),
    "#d9ead3": ("sum", "mean", "max", "min", "amax", "amin", "var", "_softmax", "_log_softmax", "native_layer_norm"),
    "#eeeeee": ("t", "view", "expand", "slice", "select", "permute", "transpose", "unsqueeze", "squeeze", "split"),
    "#f4cccc": ("update_view",),
}
_COLOR = {name: color for color, names in _COLORS.items() for name in names}
_OTHER = "#dbe7f5"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class _DotWriter:
    """Build the Graphviz source of a graph. Constants are shown inside the operations that use them."""

    def __init__(self, graph: Graph) -> None:
        self._lines = {line.number: line for line in graph.lines}
        self._constants = {line.number for line in graph.lines if line.op == "prim::Constant"}
        self._users: dict[int, list[GraphLine]] = defaultdict(list)
        for line in graph.lines:
            for number, _ in line.operands:
                self._users[number].append(line)
        title = " ".join(part for part in (graph.section, graph.hash) if part) or "graph"
        self._rows = [
            "digraph G {",
            f'  graph [label={_quote(title)}, labelloc=t, fontname="Helvetica", fontsize=12, nodesep=0.25]',
            '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, margin="0.1,0.05"]',
            '  edge [color="#777777", arrowsize=0.6, fontname="Helvetica", fontsize=8]',
        ]

    def source(self) -> str:
        inside: dict[tuple[str, ...], list[GraphLine]] = defaultdict(list)
        for line in self._lines.values():
            if line.number not in self._constants:
                inside[self._module_path(line)].append(line)
        self._cluster((), inside, 1)
        for line in self._lines.values():
            self._edges(line)
        return "\n".join([*self._rows, "}"]) + "\n"

    def _module_path(self, line: GraphLine) -> tuple[str, ...]:
        """Return the modules that enclose a line; for an input, the innermost module that contains all its users."""
        if line.op != "xla::device_data":
            scope = line.tags.get("scope", "")
            return tuple(scope.split("/")) if scope else ()
        paths = [self._module_path(user) for user in self._users[line.number]]
        levels = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        return tuple(parts[0] for parts in levels)

    def _cluster(self, path: tuple[str, ...], inside: dict[tuple[str, ...], list[GraphLine]], depth: int) -> None:
        indent = "  " * depth
        for line in inside.get(path, ()):
            self._rows.append(f"{indent}{self._node(line)}")
        for child in sorted({p[: len(path) + 1] for p in inside if len(p) > len(path) and p[: len(path)] == path}):
            name = "/".join(child)
            self._rows.append(f"{indent}subgraph {_quote('cluster_' + name)} {{")
            style = 'style="rounded,filled", fillcolor="#00000008", color="#999999", fontsize=11'
            self._rows.append(f"{indent}  label={_quote(child[-1])}; tooltip={_quote(name)}; graph [{style}]")
            self._cluster(child, inside, depth + 1)
            self._rows.append(f"{indent}}}")

    def _node(self, line: GraphLine) -> str:
        constants = [self._lines[n].tags.get("value", "?") for n, _ in line.operands if n in self._constants]
        name = line.op.split("::")[-1] + (f"(…, {', '.join(constants)})" if constants else "")
        label = [name, *(shape.split("{")[0] for shape in line.shapes)]
        label += [] if line.root is None else [f"result {line.root}"]
        attributes = {"label": "\n".join(label), "tooltip": self._node_attributes(line)}
        if line.op == "xla::device_data":
            attributes |= {"label": "\n".join(["input", *label[1:]]), "shape": "ellipse", "fillcolor": "#fff2cc"}
        else:
            attributes["fillcolor"] = _COLOR.get(line.op.split("::")[-1], _OTHER)
        if line.root is not None:
            attributes |= {"penwidth": "2.5"}
        return f"node{line.number} [{', '.join(f'{k}={_quote(v)}' for k, v in attributes.items())}]"

    @staticmethod
    def _node_attributes(line: GraphLine) -> str:
        return "\n".join([f"%{line.number} {line.op}", *(f"{k}={v}" for k, v in line.tags.items() if k != "xla_shape")])

    def _edges(self, line: GraphLine) -> None:
        for number, out in line.operands:
            if number not in self._constants:
                label = "" if out is None else f' [label="{out}"]'
                self._rows.append(f"  node{number} -> node{line.number}{label}")


def dot_source(graph: Graph) -> str:
    """Return a graph as Graphviz source.

    Args:
      graph: a graph of read_graphs.
    """
    return _DotWriter(graph).source()


def svg(graph: Graph) -> str:
    """Return a graph as SVG, drawn by Graphviz.

    Args:
      graph: a graph of read_graphs.

    Raises:
      RuntimeError: Graphviz is missing or fails.
    """
    command = shutil.which("dot")
    if command is None:
        raise RuntimeError(
            "drawing a graph requires Graphviz, but the command `dot` was not found: apt-get install graphviz"
        )
    done = subprocess.run([command, "-Tsvg"], input=dot_source(graph), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"Graphviz failed: {done.stderr.strip()}")
    return done.stdout


def list_graphs(graphs: Sequence[Graph]) -> str:
    """Return one line per graph: its number, size, section and hash.

    Args:
      graphs: graphs of read_graphs.
    """
    rows = []
    for number, graph in enumerate(graphs):
        inputs = sum(line.op == "xla::device_data" for line in graph.lines)
        results = sum(line.root is not None for line in graph.lines)
        ops = sum(line.op not in ("xla::device_data", "prim::Constant") for line in graph.lines)
        rows.append(f"{number}: {ops} operations, {inputs} inputs, {results} results  {graph.section} {graph.hash}")
    return "\n".join(row.rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a dump in the format text or dot")
    parser.add_argument("--svg", metavar="OUT", help="write the graph as SVG; without it, list the graphs of the file")
    parser.add_argument(
        "--graph", type=int, default=-1, metavar="N", help="index of the graph, from 0; default: the last"
    )
    options = parser.parse_args()
    try:
        graphs = read_graphs(options.file)
        if options.svg is None:
            print(list_graphs(graphs))
        elif not -len(graphs) <= options.graph < len(graphs):
            raise ValueError(f"--graph {options.graph}: the file has {len(graphs)} graphs, numbered from 0")
        else:
            Path(options.svg).write_text(svg(graphs[options.graph]))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"torch_xla.debug.graph: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
