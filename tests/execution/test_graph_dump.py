"""Graph dumps: the file of XLA_SAVE_TENSORS_FILE in each form, graph_saver, the functions that show pending graphs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import counts, run_script
from torch_xla import _XLAC
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.execution import graph_dump
from torch_xla._engine.job import replicas
from torch_xla._engine.recorder import source_info
from torch_xla.debug import graph, graph_reader, graph_saver

Environment = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """Sets environment variables for the test."""

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.reload()

    yield set_variables
    monkeypatch.undo()
    settings.reload()


def step() -> torch.Tensor:
    """One small graph with a leaf, a number operand, constants, a view that is written to, and two results of an op."""
    x = torch.ones(2, 3).to("xla")
    torch_xla.sync()
    y = x.t() * 0.5 + 1
    y[0] = 2
    _, place = y.max(1)
    y.relu_()
    torch_xla.sync()
    return place


TEXT = """\
IR {
  %0 = f32[2,3]{1,0} xla::device_data(), xla_shape=f32[2,3]{1,0}, device=CPU:0
  %1 = f32[3,2]{1,0} aten::t(%0), xla_shape=f32[3,2]{1,0}
  %2 = f64[] xla::device_data(), xla_shape=f64[], device=CPU:0
  %3 = f32[3,2]{1,0} aten::mul(%1, %2), xla_shape=f32[3,2]{1,0}
  %4 = s64[] prim::Constant(), xla_shape=s64[], value=1
  %5 = f32[3,2]{1,0} aten::add(%3, %4, %4), xla_shape=f32[3,2]{1,0}
"""

SECTION = re.compile(
    r"""\[(?P<section>\w+)\]
TensorsGraphInfo:
(?P<frames>(?:  \S+ \([^\n]*:\d+\)\n)+)
Root Hashes: \((?P<roots>[0-9a-f]{32}(?:, [0-9a-f]{32})*)\)

## BEGIN_GRAPH
(?P<graph>.*?)
Graph Hash: (?P<hash>[0-9a-f]{32})

## END_GRAPH

""",
    re.DOTALL,
)
SHAPE = r"(?:pred|[fsuc]\d+|bf16)\[[\d,]*\](?:\{[\d,]+\})?"
SHAPES = rf"(?:{SHAPE}|\({SHAPE}(?:, {SHAPE})*\))"
OPERAND = r"%\d+(?:\.\d+)?"
LINE = re.compile(
    rf"  %(\d+) = ({SHAPES}) \w+::\w+\((?:{OPERAND}(?:, {OPERAND})*)?\)"
    rf"(?:, num_outputs=\d+)?(?:, scope=\S+)?(?:, location=\S+)?, xla_shape={SHAPES}(?:, \w+=.+?)*(?:, ROOT=\d+)?"
)


def test_text(environment: Environment, tmp_path: Path) -> None:
    """Held against a grammar of the whole file; the graphs against what they must say."""
    file = tmp_path / "graphs.0"
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs"))
    step()
    first = file.read_text()
    step()
    sections = list(SECTION.finditer(file.read_text()))
    assert "".join(m[0] for m in sections) == file.read_text(), "text between the sections"
    assert file.read_text().startswith(first), "not appended"
    assert len(sections) == 2
    assert sections[0]["hash"] == sections[1]["hash"] and sections[0]["roots"] == sections[1]["roots"]
    found = sections[0]
    assert found["section"] == "ScheduleSyncTensorsGraph"
    frames = found["frames"].splitlines()
    assert re.fullmatch(r"  sync \(.*torch_xla/torch_xla\.py:\d+\)", frames[0])
    assert re.fullmatch(rf"  step \({re.escape(__file__)}:\d+\)", frames[1])
    assert found["graph"].startswith(TEXT), found["graph"]
    lines = found["graph"].splitlines()
    assert (lines[0], lines[-1]) == ("IR {", "}")
    for number, line in enumerate(lines[1:-1]):
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert int(match[1]) == number
    assert "xla::update_view(%5, " in found["graph"]
    assert re.search(r"\(f32\[3\]\{0\}, s64\[3\]\{0\}\) aten::max\(%\d+\), num_outputs=2, .*ROOT=\d", found["graph"])
    # Three tensors are alive; two of them are results of one line, which shows the number of the last.
    assert found["roots"].count(",") + 1 == 3
    assert found["graph"].count("ROOT=") == 2


def test_read_back(environment: Environment, tmp_path: Path) -> None:
    """What is read from the forms text and dot is one and the same."""
    read = {}
    source_info.set_capture(True)
    try:
        for form in ("text", "dot"):
            environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / form), XLA_SAVE_TENSORS_FMT=form)
            step()
            (read[form],) = graph_reader.read_graphs(tmp_path / f"{form}.0")
    finally:
        source_info.set_capture(False)
    assert read["text"].hash == read["dot"].hash != ""
    for a, b in zip(read["text"].lines, read["dot"].lines, strict=True):
        assert (a.number, a.op, a.shapes, a.operands, a.root, list(a.tags)) == (
            b.number, b.op, b.shapes, b.operands, b.root, list(b.tags)
        )  # fmt: skip
    assert any(line.tags.get("location", "").startswith("step@test_graph_dump.py:") for line in read["text"].lines)


def test_texts_follow_the_precision_of_products(environment: Environment, tmp_path: Path) -> None:
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs"), XLA_SAVE_TENSORS_FMT="stablehlo")
    before = matmul_precision._chosen
    try:
        for name in ("highest", "default"):
            matmul_precision.set_precision(name)
            x = torch.ones(5, 5).to("xla") @ torch.ones(5, 5).to("xla")
            torch_xla.sync()
            del x
    finally:
        matmul_precision._chosen = before
    found = re.findall(r"dot_general.*precision = \[(\w+)", (tmp_path / "graphs.0").read_text())
    assert found == ["HIGHEST", "DEFAULT"]


#: Source locations precede the module since jax 0.12, if an earlier test in this process has enabled metadata (aot).
MODULE = r"(#loc.*\n)*module @"


@pytest.mark.parametrize(("form", "start"), [("hlo", r"HloModule IrToHlo\.\d+, entry"), ("stablehlo", MODULE)])
def test_hlo(environment: Environment, tmp_path: Path, form: str, start: str) -> None:
    file = tmp_path / "graphs.0"
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs"), XLA_SAVE_TENSORS_FMT=form)
    step()
    with counts() as moved:
        step()
    assert moved.compilations == 0
    sections = list(SECTION.finditer(file.read_text()))
    assert "".join(m[0] for m in sections) == file.read_text()
    assert re.match(start, sections[0]["graph"])
    assert sections[0]["graph"] == sections[1]["graph"]
    assert "sdy" not in sections[0]["graph"]


def test_sections_of_op_by_op(environment: Environment, tmp_path: Path) -> None:
    file = tmp_path / "graphs.0"
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs"), XLA_SYNC_TENSORS_OPBYOP="1", XLA_GET_TENSORS_OPBYOP="1")
    x = torch.ones(3, device="xla") * 2.5
    torch_xla.sync()
    x.sum().item()
    assert [g.section for g in graph_reader.read_graphs(file)] == ["SyncTensorsGraphOpByOp", "GetTensorsOpByOp"]


def test_several_processes_have_a_file_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert graph_dump.dump_path(tmp_path / "graphs.txt").name == "graphs.txt.0"
    monkeypatch.setattr(replicas, "process_index", lambda: 3)
    assert graph_dump.dump_path(tmp_path / "graphs.txt").name == "graphs.txt.3"


def test_environment(tmp_path: Path) -> None:
    """The documents' variables, in a separate process."""
    code = """
        import torch, torch_xla
        x = torch.ones(2, 2, device="xla").exp_() * 3
        print(x)
    """
    run_script(code, XLA_SAVE_TENSORS_FILE=str(tmp_path / "f"), XLA_SAVE_TENSORS_FMT="dot")
    assert "digraph G {" in (tmp_path / "f.0").read_text()


def test_form_that_does_not_exist(environment: Environment, tmp_path: Path) -> None:
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "f"), XLA_SAVE_TENSORS_FMT="png")
    x = torch.ones(2, device="xla") * 3
    with pytest.raises(ValueError, match="XLA_SAVE_TENSORS_FMT='png' is not one of text, dot, hlo, stablehlo"):
        x.cpu()


def test_graph_saver(environment: Environment, tmp_path: Path) -> None:
    x = torch.ones(2, device="xla") * 2.5
    for form, start in (("text", "IR {"), ("dot", "digraph G {"), ("hlo", "HloModule IrToHlo.")):
        environment(SAVE_GRAPH_FMT=form)
        graph_saver.save_tensors_graph(tmp_path, "mine", [x])
        (file,) = tmp_path.glob(f"*.{form}")
        assert re.fullmatch(rf"mine-{threading.get_ident()}-\d+\.{form}", file.name)
        assert file.read_text().startswith(start)


def test_looking_changes_nothing() -> None:
    def run(look: bool) -> tuple[list[float], int]:
        torch.manual_seed(5)
        x = torch.rand(4, device="xla")
        if look:
            _XLAC._get_xla_tensors_text([x])
            xm.get_stablehlo()
        y = torch.rand(4, device="xla") + x
        with counts() as moved:
            torch_xla.sync()
        return y.tolist(), moved.compilations

    assert run(look=False)[1] == 1
    values, compilations = run(look=True)
    assert compilations == 0
    assert values == run(look=False)[0]


def test_functions_that_show_pending_graphs() -> None:
    x = torch.ones(2, 2).to("xla")
    torch_xla.sync()
    y = x @ x + 0.5
    assert _XLAC._get_xla_tensors_text([y, x]).splitlines()[1].endswith("device=CPU:0, ROOT=1")
    assert _XLAC._get_xla_tensors_dot([y]).startswith('digraph G {\n  node0 [label="xla::device_data\\nf32[2,2]{1,0}')
    assert "dot(leaves" in _XLAC._get_xla_tensors_hlo([y])
    assert "stablehlo.dot_general" in xm.get_stablehlo([y])
    assert xm.get_stablehlo() == xm.get_stablehlo([y])
    assert xm.get_stablehlo_bytecode([y]).startswith(b"ML\xefR")
    with counts() as moved:
        torch_xla.sync()
    assert moved["UncachedSyncTensors"] + moved["CachedSyncTensors"] == 1, "looking has run it"
    assert "stablehlo.dot_general" not in xm.get_stablehlo()
    with pytest.raises(ValueError, match=r"^get_stablehlo: expected xla tensors, got torch.float32\[3\] on cpu"):
        xm.get_stablehlo([torch.ones(3)])


def test_every_kind_of_argument_has_a_place_in_the_text() -> None:
    """Lists with holes, dtypes, strings, complex numbers, baked numbers, random ops, ops of no tensor."""
    x = torch.ones(3, 4, device="xla")
    index = torch.zeros(2, dtype=torch.int64, device="xla")
    results = [
        x[:, index], x.sum(1, dtype=torch.float64), x * 2j, x**3, torch.rand(2, device="xla"), x.clamp(max=0.5),
        nn.functional.pad(x, (1, 2), value=7.5), torch.arange(2, 9, 3, device="xla"), x.to(torch.bfloat16),
        torch.div(x, 2, rounding_mode="floor"), torch.fft.fft(x), x.var(0, correction=0), torch.stack([x, x]),
        *x.split([1, 2]), nn.functional.gelu(x, approximate="tanh"), x > 0,
    ]  # fmt: skip
    text = _XLAC._get_xla_tensors_text(results)
    for line in text.splitlines()[1:-1]:
        assert LINE.fullmatch(line), line
    for part in ("dtype=f64", "rounding_mode='floor'", "approximate='tanh'", "c128[] xla::device_data", "offset=0"):
        assert part in text, part


@pytest.fixture
def graphviz() -> None:
    if shutil.which("dot") is None:
        pytest.skip("needs Graphviz's dot, as in apt-get install graphviz")


@pytest.fixture
def training(environment: Environment, tmp_path: Path) -> Path:
    """A dump of two graphs, of which the second is a training step."""
    file = tmp_path / "graphs.txt.0"
    environment(XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs.txt"))
    source_info.set_capture(True)
    try:
        net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.LayerNorm(4), nn.ReLU())).to("xla")
        (torch.ones(2, device="xla") * 3).cpu()
        net(torch.ones(2, 3, device="xla")).sum().backward()
        torch_xla.sync()
    finally:
        source_info.set_capture(False)
    return file


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["graph", *map(str, arguments)])
    return graph.main()


def test_picture(graphviz: None, training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "step.svg"
    assert _main(monkeypatch, training, "--svg", out) == 0
    groups = {
        (element.get("class"), title.text)
        for element in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}g")
        for title in element.findall("{http://www.w3.org/2000/svg}title")
    }
    clusters = {title for kind, title in groups if kind == "cluster"}
    assert {"cluster_Sequential/0", "cluster_Sequential/1/0", "cluster_backward/Sequential/0"} <= clusters
    drawn = graph_reader.read_graphs(training)[1].lines
    assert sum(kind == "node" for kind, _ in groups) == sum(line.op != "prim::Constant" for line in drawn)
    words = "".join(ElementTree.parse(out).getroot().itertext())
    assert "native_layer_norm" in words and "f32[2,4]" in words
    assert "test_graph_dump.py" in out.read_text(), "no line in a tooltip"


def test_dumped_dot_renders(graphviz: None, training: Path) -> None:
    x = torch.ones(2, 2, device="xla") @ torch.ones(2, 2, device="xla") + 0.5
    source = _XLAC._get_xla_tensors_dot([x, *x.max(0)])
    done = subprocess.run(["dot", "-Tsvg"], input=source, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count('class="node"') == len(re.findall(r"^  node\d+ \[", source, re.MULTILINE)) > 5


def test_listing_and_errors(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, training) == 0
    rows = capsys.readouterr().out.splitlines()
    first, _ = rows
    assert re.fullmatch(r"0: 2 operations, 1 inputs, 1 results  ScheduleSyncTensorsGraph [0-9a-f]{32}", first)
    (tmp_path / "other").write_text("HloModule x")
    for arguments, message in (
        ((tmp_path / "other",), "no graph in the format text or dot"),
        ((tmp_path / "missing",), "No such file"),
        ((training, "--svg", tmp_path / "o", "--graph", 7), "--graph 7: the file has 2 graphs"),
    ):
        assert _main(monkeypatch, *arguments) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert _main(monkeypatch, training, "--svg", tmp_path / "o") == 1
    assert "apt-get install graphviz" in capsys.readouterr().err
