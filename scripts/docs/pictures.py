"""Draws the pictures of the guides: ``python scripts/docs/pictures.py`` writes docs/pictures/*.svg.

A picture is a list of boxes and arrows on a grid of 10 pixels. It has its own light background, so that it can be read
on dark pages, too. A test draws them again and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
_GRID = 10
_COLORS = {"host": "#e3e8f8", "device": "#d9f0e0", "program": "#fdeccb", "part": "#ffffff", "": "none"}
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
    'font-family="sans-serif" font-size="13" role="img" aria-label="{title}">\n'
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#444"/></marker></defs>\n'
    '<rect width="{width}" height="{height}" rx="8" fill="#fbfbfd" stroke="#c9ccd6"/>\n'
)


@dataclass
class Picture:
    """A picture of that many grid units; ``text`` is its file."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)
    arrows: list[str] = field(default_factory=list)  # drawn above all boxes

    def box(self, x: float, y: float, width: float, height: float, words: str = "", kind: str = "host") -> None:
        """A box with lines of words in its middle; with ``kind`` empty only the words."""
        edge = "none" if kind == "" else "#8a90a6"
        self.parts.append(
            f'<rect x="{x * _GRID:g}" y="{y * _GRID:g}" width="{width * _GRID:g}" height="{height * _GRID:g}" rx="5" '
            f'fill="{_COLORS[kind]}" stroke="{edge}"/>'
        )
        lines = words.split("\n") if words else []
        for number, line in enumerate(lines):
            at = (y + height / 2) * _GRID + 4.5 + (number - (len(lines) - 1) / 2) * 16
            middle = (x + width / 2) * _GRID
            self.parts.append(f'<text x="{middle:g}" y="{at:g}" text-anchor="middle" fill="#222">{escape(line)}</text>')

    def head(self, x: float, y: float, words: str) -> None:
        """Words that begin at a place."""
        place = f'x="{x * _GRID:g}" y="{y * _GRID:g}"'
        self.parts.append(f'<text {place} fill="#222" font-weight="bold">{escape(words)}</text>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], words: str = "", both: bool = False) -> None:
        """A line with a head at its end, and words above its middle."""
        (x1, y1), (x2, y2) = start, end
        tail = ' marker-start="url(#tail)"' if both else ""
        self.arrows.append(
            f'<line x1="{x1 * _GRID:g}" y1="{y1 * _GRID:g}" x2="{x2 * _GRID:g}" y2="{y2 * _GRID:g}" stroke="#444" '
            f'stroke-width="1.3" marker-end="url(#head)"{tail}/>'
        )
        if words:
            x, y = (x1 + x2) / 2 * _GRID, (y1 + y2) / 2 * _GRID - 6
            text = f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="#444" font-size="12">{escape(words)}</text>'
            self.arrows.append(text)

    @property
    def text(self) -> str:
        head = _HEAD.format(width=self.width * _GRID, height=self.height * _GRID, title=escape(self.title))
        head = head.replace("</defs>", _TAIL + "</defs>")
        return head + "\n".join(self.parts + self.arrows) + "\n</svg>\n"


_TAIL = (
    '<marker id="tail" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M8 0 L0 4 L8 8 z" fill="#444"/></marker>'
)


def step() -> Picture:
    """One training step, from Python to the device."""
    p = Picture("A step: traced, compiled once, run", 74, 19)
    p.box(2, 5, 17, 9, "your step\nforward, backward,\noptimizer")
    p.arrow((19, 9.5), (27, 9.5), "traces")
    p.box(27, 5, 12, 9, "graph\nof the step", "program")
    p.arrow((39, 8), (50, 8), "known: runs")
    p.arrow((33, 14), (33, 16))
    p.box(23, 16, 20, 2, "new: XLA compiles it, once", "")
    p.box(50, 5, 22, 9, "program on the device\nruns in the background", "device")
    p.head(2, 3, "torch")
    p.head(27, 3, "torch_xla.sync()")
    p.head(50, 3, "XLA: CPU, GPU, TPU")
    return p


def lazy() -> Picture:
    """What runs at a sync, and what runs to read a value."""
    p = Picture("Tracing, and two ways to run", 74, 22)
    for number, op in enumerate(("x * 1.01", "tanh", "mean", "x.t()")):
        p.box(3, 2 + number * 4.5, 11, 3.2, op)
    p.box(17, 2, 14, 16.7, "traced:\nshapes, dtypes,\nerrors are known;\nvalues are not", "program")
    p.arrow((31, 6), (46, 6), "torch_xla.sync()")
    p.box(46, 3, 25, 6, "all pending ops, one program;\nPython continues", "device")
    p.arrow((31, 15), (46, 15), "mean.item()")
    p.box(46, 12, 25, 6, "only what this value needs;\nPython waits for it", "device")
    return p


def _device(p: Picture, x: float, y: float, name: str, inside: Sequence[str]) -> None:
    p.box(x, y, 15, 4 + 3.4 * len(inside), "", "device")
    p.box(x, y, 15, 3.4, name, "")
    for number, words in enumerate(inside):
        p.box(x + 1, y + 3.4 + number * 3.4, 13, 2.8, words, "part")


def processes() -> Picture:
    """A process for each device."""
    p = Picture("A process for each device", 74, 27)
    for number in range(4):
        x = 2 + number * 18
        p.box(x, 2, 15, 5, f"process {number}\nthe whole script")
        p.arrow((x + 7.5, 7), (x + 7.5, 10))
        _device(p, x, 10, f"device {number}", ("full model", f"batch {number}", "gradients"))
        if number < 3:
            p.arrow((x + 14.2, 21.6), (x + 18.8, 21.6), both=True)
    p.box(10, 24.5, 54, 2, "xm.optimizer_step: gradients are averaged", "")
    return p


def threads() -> Picture:
    """A thread for each device."""
    p = Picture("A thread for each device", 74, 27)
    p.box(2, 1.5, 69, 6.5, "")
    p.box(2, 1.5, 69, 2.5, "one process: Python runs one thread at a time", "")
    for number in range(4):
        x = 2 + number * 18
        p.box(x + 1, 4.3, 13, 3, f"thread {number}", "part")
        p.arrow((x + 7.5, 7.6), (x + 7.5, 10))
        _device(p, x, 10, f"device {number}", ("full model", f"batch {number}", "gradients"))
        if number < 3:
            p.arrow((x + 14.2, 21.6), (x + 18.8, 21.6), both=True)
    p.box(10, 24.5, 54, 2, "xm.optimizer_step: gradients are averaged", "")
    return p


def spmd() -> Picture:
    """One script over a mesh."""
    p = Picture("One script over a mesh of devices", 74, 31)
    p.box(2, 2, 33, 5, "one process, one device xla:0:\ntensors have their global shape")
    p.arrow((35, 4.5), (45, 4.5), "one program")
    p.box(45, 2, 27, 5, "XLA partitions it and\ninserts the collectives", "program")
    p.arrow((58, 7), (46, 10.5))
    for number in range(4):
        x, y = 20 + number % 2 * 18, 11 + number // 2 * 10
        rows, columns = "top" if number < 2 else "bottom", "left" if number % 2 == 0 else "right"
        inside = (f"rows of the batch: {rows}", f"weight: {columns}")
        p.box(x, y, 17, 8.6, "", "device")
        p.box(x, y, 17, 2.6, f"device {number}", "")
        for line, words in enumerate(inside):
            p.box(x + 0.6, y + 2.6 + line * 2.9, 15.8, 2.5, words, "part")
    p.head(2, 16, "axis data")
    p.arrow((10, 13), (10, 28))
    p.arrow((21, 30.2), (54, 30.2))
    p.head(56, 30.5, "axis model")
    return p


def fsdp() -> Picture:
    """Shares of parameters."""
    p = Picture("Each device holds a share of every parameter", 74, 23)
    for number in range(4):
        x = 2 + number * 18
        _device(p, x, 2, f"device {number}", (f"share {number} of layers", f"batch {number}"))
        p.arrow((x + 7.5, 12.8), (x + 7.5, 15.5))
        if number < 3:
            p.arrow((x + 14.3, 6.8), (x + 18.7, 6.8), both=True)
    p.box(2, 15.5, 69, 5, "a layer is gathered when its forward and backward need it, then forgotten;\n"
          "its gradient is left as shares, and the optimizer updates shares", "program")  # fmt: skip
    return p


_CONTESTANTS = {"here, ms": "torch_xla", "eager CPU": "eager torch", "inductor": "torch.compile", "jax": "jax, by hand"}


def _read_table(page: str, start: str) -> list[dict[str, str]]:
    """The rows of a table of docs/project, by the names of its columns."""
    text = (FOLDER.parent / "project" / page).read_text()
    table = text[text.index(start) :].partition("\n\n")[0]
    names, _, *rows = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line.startswith("|")
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _training_steps() -> dict[str, list[float]]:
    """The table of docs/project/benchmarks.md: for each model the ms of the contestants."""
    rows = _read_table("benchmarks.md", "| a step in a row")
    return {row["a step in a row"]: [float(row[name]) for name in _CONTESTANTS] for row in rows}


def steps() -> Picture:
    """Training steps, each as long as it is in times of eager torch's."""
    table = _training_steps()
    p = Picture("A training step, in times of eager torch's", 74, 3 + 9 * len(table))
    unit = min(14.0, 40 / max(time / times[1] for times in table.values() for time in times))
    for number, (model, times) in enumerate(table.items()):
        y = 2 + 9 * number
        p.box(1, y, 15, 7.2, model.replace(", ", "\n"), "")
        for line, (who, time) in enumerate(zip(_CONTESTANTS.values(), times, strict=True)):
            ratio, at = time / times[1], y + 1.8 * line
            p.box(16, at, 12, 1.7, who, "")
            p.box(28.5, at + 0.2, unit * ratio, 1.3, "", "program" if line == 0 else "device")
            p.box(28.5 + unit * ratio, at, 5, 1.7, f"{ratio:.2f}", "")
    return p


_PARTS = {"computation, s": "program", "bytes, s": "device", "latency of rings, s": "host"}


def scaling_chart() -> Picture:
    """Steps of Llama on more and more chips, each layout in times of its smallest mesh."""
    rows = _read_table("scaling.md", "| layout | chips | mesh | compiled for")
    p = Picture(
        "A training step in weak scaling, in times of the smallest mesh of its layout", 74, 5 + 22 * len(rows) // 10
    )
    for number, (part, kind) in enumerate(_PARTS.items()):
        p.box(20 + 17 * number, 1, 16, 1.8, part.removesuffix(", s"), kind)
    times = [sum(float(row[part]) for part in _PARTS) for row in rows]
    first: dict[str, float] = {}
    ratios = [time / first.setdefault(row["layout"], time) for row, time in zip(rows, times, strict=True)]
    for number, (row, time, ratio) in enumerate(zip(rows, times, ratios, strict=True)):
        x, y = 27.5, 4 + 2.2 * number
        p.box(1, y, 17, 1.8, row["layout"], "")
        p.box(18.5, y, 8, 1.8, f"{row['chips']} chips", "")
        for part, kind in _PARTS.items():
            width = 38 / max(ratios) * ratio * float(row[part]) / time
            p.box(x, y + 0.2, width, 1.4, "", kind)
            x += width
        p.box(x + 0.5, y, 5, 1.8, f"{ratio:.2f}", "")
    return p


PICTURES = {f.__name__: f for f in (step, lazy, processes, threads, spmd, fsdp, steps, scaling_chart)}


def main() -> None:
    """Writes all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().text)


if __name__ == "__main__":
    main()
