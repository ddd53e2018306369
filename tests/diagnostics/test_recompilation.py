"""Recompilations: each cause is reported once, with its line and the matching advice."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.diagnostics import recompilation_explanation, step_timings
from torch_xla._engine.diagnostics.buffer_provenance import UNKNOWN, Provenance
from torch_xla._engine.diagnostics.recompilation_explanation import RecompilationContext
from torch_xla._engine.diagnostics.recompilation_tracker import RecompilationTracker, tracker
from torch_xla._engine.graph import graph_diff
from torch_xla._engine.graph.graph_diff import diff_summaries, nearest_summary
from torch_xla._engine.graph.graph_summary import GraphSummary, OpSummary, ScalarInput
from torch_xla.debug import recompilation

pytestmark = pytest.mark.usefixtures("cold")


def line_of(function: Callable[..., object], mark: str) -> str:
    """``file:line`` of the line of ``function`` that ends with ``# <mark>``."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}"))
    return f"{__file__}:{first + number}"


class _Trainer:
    def __init__(self, lr: float = 0.1) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("xla")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        return nn.functional.cross_entropy(self.model(x), y)

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()


def last_batch_is_smaller() -> None:
    trainer = _Trainer()
    for _ in range(2):
        for size in (8, 8, 8, 3):
            x, y = torch.randn(size, 4).to("xla"), torch.randint(2, (size,)).to("xla")  # upload
            trainer.update(trainer.loss(x, y))
            torch_xla.sync()  # barrier


def float_reaches_an_exponent() -> None:
    trainer = _Trainer()
    for step in range(6):
        x, y = torch.randn(8, 4).to("xla"), torch.randint(2, (8,)).to("xla")  # upload
        trainer.update(trainer.loss(x, y) ** (1.5 + 0.1 * step))  # power
        torch_xla.sync()  # barrier


def loss_decides() -> None:
    trainer = _Trainer()
    for step in range(8):
        x, y = torch.randn(8, 4).to("xla"), torch.randint(2, (8,)).to("xla")  # upload
        loss = trainer.loss(x, y)
        threshold = 0.0 if step in (4, 6) else 1e6
        if loss.item() > threshold:  # read
            loss = loss * 0.5 + loss.sigmoid()
        trainer.update(loss)
        torch_xla.sync()  # barrier


def _only(reported: list[recompilation_explanation.Explanation]) -> recompilation_explanation.Explanation:
    assert len(reported) == 1, "\n".join(e.text for e in reported)
    headline, cause, fix, see = reported[0].text.splitlines()
    assert headline.startswith("recompiled the graph at ") and cause.startswith("cause: ") and fix.startswith("fix: ")
    assert see == "See: torch-xla explain recompilation"
    return reported[0]


def test_last_batch_of_another_size() -> None:
    with recompilation.watch(lambda e: None) as reported, counts() as moved:
        last_batch_is_smaller()
    found = _only(reported)
    upload, barrier = line_of(last_batch_is_smaller, "upload"), line_of(last_batch_is_smaller, "barrier")
    assert found.kind == "inputs" and found.line == upload
    assert found.details["inputs"] == [(0, "float32[8, 4]", "float32[3, 4]"), (4, "int64[8]", "int64[3]")] or {
        change[1:] for change in found.details["inputs"]
    } == {("float32[8, 4]", "float32[3, 4]"), ("int64[8]", "int64[3]")}
    assert upload in found.text and barrier in found.text and "drop_last=True" in found.text and "pad" in found.text
    assert moved["UnexpectedRecompile"] == 1 and moved.compilations == 3


def test_python_float_reaches_a_baked_argument() -> None:
    with recompilation.watch(lambda e: None) as reported, counts() as moved:
        float_reaches_an_exponent()
    found = _only(reported)
    assert found.kind == "argument" and found.line == line_of(float_reaches_an_exponent, "power")
    assert found.details["op"].startswith("aten::pow") and found.details["argument"] == "exponent"
    assert found.details["old"] == pytest.approx(1.6) and found.details["new"] == pytest.approx(1.7)
    assert "keep it as a tensor" in found.text and "1.6" in found.text and "1.7" in found.text
    assert moved["UnexpectedRecompile"] == moved.compilations - 2 == 4


def test_value_decides_what_is_recorded() -> None:
    with recompilation.watch(lambda e: None) as reported, counts() as moved:
        loss_decides()
    found = _only(reported)
    read = line_of(loss_decides, "read")
    assert found.kind == "branch" and found.line == read
    assert f"a value was read at {read}" in found.text and "torch.where" in found.text
    assert "aten::sigmoid" in found.text and line_of(loss_decides, "barrier") in found.text
    assert moved["UnexpectedRecompile"] == 1


@pytest.fixture
def fresh_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process without unexpected compilations so far."""
    fresh = RecompilationTracker()
    for name, value in vars(fresh).items():
        monkeypatch.setattr(tracker, name, value)


@pytest.mark.usefixtures("fresh_tracker")
def test_logs_from_the_third_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_xla"):
        for size in (3, 4, 5, 6, 7, 8):
            x = torch.ones(size).to("xla")
            (x * 2).cpu()
    assert recompilation.count() == 5
    messages = [r.getMessage() for r in caplog.records if r.name == "torch_xla.recompilation"]
    assert len(messages) == 1 and "float32[5]" in messages[0] and "float32[6]" in messages[0]
    report = recompilation.report()
    assert report.startswith("5 × recompiled the graph at ") and report.count("\n  cause: ") == 1
    assert [e.kind for e in recompilation.explanations()] == ["inputs"]
    recompilation.clear()
    assert recompilation.report() == "No unexpected compilation so far."


@pytest.mark.usefixtures("fresh_tracker")
def test_captures_lines_while_compilations_are_unexpected() -> None:
    calls: list[bool] = []
    tracker.capture = calls.append
    for size in (3, 4, 5):
        (torch.ones(size).to("xla") / 3).cpu()
    assert calls == [True]
    for _ in range(100):
        torch_xla.sync()
    assert calls == [True, False]
    with recompilation.watch():
        torch_xla.sync()
        assert calls == [True, False, True]
    assert calls == [True, False, True, False]


@pytest.mark.usefixtures("fresh_tracker")
def test_first_compilations_are_expected() -> None:
    """The first compilation of a line is expected, and that of the step after the optimizer created its state."""
    trainer = _Trainer()
    for _ in range(4):
        x, y = torch.randn(8, 4).to("xla"), torch.randint(2, (8,)).to("xla")
        trainer.update(trainer.loss(x, y))
        torch_xla.sync()
    assert recompilation.count() == 0 and recompilation.explanations() == []


@pytest.mark.usefixtures("fresh_tracker")
def test_optimizer_state_after_gradient_accumulation() -> None:
    """Gradients accumulate: there are graphs with and without the optimizer; its state is no third cause."""
    trainer = _Trainer()
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.1)
    with recompilation.watch(lambda e: None) as reported:
        for step in range(12):
            x, y = torch.randn(8, 4).to("xla"), torch.randint(2, (8,)).to("xla")
            nn.functional.cross_entropy(trainer.model(x), y).backward()
            if step % 4 == 3:
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()
            torch_xla.sync()
    assert "aten::_foreach_lerp.Scalar" in _only(reported).details["added"]
    assert recompilation.count() == 1


@pytest.mark.usefixtures("fresh_tracker")
def test_lines_skip_the_standard_library() -> None:
    """copy.deepcopy records a clone of each parameter at the line of its call."""
    with recompilation.watch(lambda e: None) as reported:
        for size in (2, 3, 4):
            module = nn.Linear(size, 1).to("xla")
            copy.deepcopy(module).weight.cpu()
    assert "copy.py" not in _only(reported).text


@pytest.mark.usefixtures("fresh_tracker")
def test_shape_that_depends_on_values() -> None:
    with recompilation.watch(lambda e: None) as reported, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the CPU fallback
        for ones in (3, 4, 5):
            x = torch.arange(8).to("xla") < ones
            (x.nonzero() + 1).cpu()
    found = _only(reported)
    assert found.kind == "inputs" and "returned by an op that ran on the CPU" in found.text
    assert "depends on values" in found.text


@pytest.mark.usefixtures("fresh_tracker")
def test_one_site_has_at_most_three_messages() -> None:
    with recompilation.watch(lambda e: None) as reported:
        x = torch.ones(4).to("xla")
        for op in ("exp", "sin", "cos", "tan", "sqrt", "neg", "log"):
            getattr(x, op)().cpu()
    assert len(reported) == 3 and recompilation.count() == 5  # the second compilation of a line counts as warm-up
    assert {e.kind for e in reported} == {"ops"}, "the reads decided nothing"


@pytest.mark.usefixtures("fresh_tracker")
def test_tensors_of_several_ranks() -> None:
    """A loop over values of several ranks: each compiles a program, and no program was evicted."""
    with recompilation.watch(lambda e: None) as reported:
        for shape in ((2,), (2, 2), (2, 2, 2), ()):
            x = torch.ones(shape).to("xla")
            x.exp().mul_(3).cpu()
    found = _only(reported)
    assert found.kind == "inputs" and "float32[2, 2]" in found.text and "torch_xla.sync()" in found.advice


@pytest.mark.usefixtures("fresh_tracker")
def test_print_shows_the_wrapped_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with recompilation.watch(print):
        last_batch_is_smaller()
    headline, *rest = capsys.readouterr().out.splitlines()
    assert headline.startswith("recompiled the graph at tests/diagnostics/test_recompilation.py:")
    assert all(line.startswith("  ") and len(line) <= 80 for line in rest)
    assert [line[2:7] for line in rest if line[2] != " "] == ["cause", "fix: ", "See: "]


@pytest.mark.usefixtures("fresh_tracker")
def test_results_that_ipython_displays_are_not_reported(tmp_path: Path) -> None:
    """Each cell displays another expression, at one line of IPython."""
    names: dict[str, Any] = {}
    file = tmp_path / "site-packages" / "IPython" / "pretty.py"
    exec(compile("def display(t):\n    return t.cpu()\n", str(file), "exec"), names)
    x = torch.ones(4).to("xla")
    with recompilation.watch(lambda e: None) as reported, counts() as moved:
        for op in ("exp", "sin", "cos", "tan", "sqrt"):
            names["display"](getattr(x, op)())
    assert moved.compilations == 5 and reported == []


def graphs_of_lines(folder: Path, lines: int) -> Callable[[torch.Tensor], None]:
    """A function of a file of the folder, each of whose lines runs four graphs."""
    names: dict[str, Any] = {}
    body = "".join(f"    for op in ('exp', 'sin', 'cos', 'tan'): getattr(t + {n}, op)().cpu()\n" for n in range(lines))
    folder.mkdir(parents=True)
    exec(compile(f"def run(t):\n{body}", str(folder / "step.py"), "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("fresh_tracker")
@pytest.mark.parametrize(
    ("folder", "watched", "reported"),
    [("mine", False, 3), ("site-packages/solver", False, 2), ("site-packages/solver", True, 4)],
)
def test_an_installed_library_logs_one_explanation_of_a_kind(
    folder: str, watched: bool, reported: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines are not the user's to change. watch() and the report have all of them."""
    x = torch.ones(4).to("xla")
    monitor = recompilation.watch(None) if watched else contextlib.nullcontext()
    tracker.threshold = 1
    with caplog.at_level(logging.WARNING, "torch_xla.recompilation"), monitor:
        graphs_of_lines(tmp_path / folder, lines=3)(x)
    messages = [" ".join(r.getMessage().split()) for r in caplog.records if r.name == "torch_xla.recompilation"]
    assert len(messages) == reported, messages
    note = "; other graphs of solver that change like this do not warn (torch_xla.debug.report() lists them)"
    assert [note in text for text in messages] == [folder != "mine" and not watched] * reported
    lines = {r.site[2] for r in tracker.found}
    assert recompilation.count() == 6 and len(lines) == 3 and "do not warn" not in recompilation.report()


@pytest.mark.usefixtures("fresh_tracker")
def test_detect_anomaly_is_not_reported() -> None:
    """It reads a flag for each gradient at the line of backward()."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to("xla")
    with (
        warnings.catch_warnings(),
        recompilation.watch(lambda e: None) as reported,
        counts() as moved,
    ):
        warnings.simplefilter("ignore")  # "Anomaly Detection has been enabled"
        with torch.autograd.detect_anomaly():
            model(torch.ones(3, 4, device="xla")).sum().backward()
    assert moved.compilations > 3 and reported == []


# --- units, on handwritten graphs -------------------------------------------------------------------------------


def graph(
    *ops: OpSummary, leaves: tuple[tuple[int, ...], ...] = ((2, 3),), roots: tuple[int, ...] = (1,)
) -> GraphSummary:
    shapes = tuple((shape, torch.float32) for shape in leaves)
    return GraphSummary(shapes, ops, roots, (), Counter(op.op for op in ops))


def op(name: str, *inputs: int, line: str | None = None, **baked: object) -> OpSummary:
    constants = tuple((int(position[1:]), value) for position, value in baked.items())
    return OpSummary(name, inputs or (0,), constants, (((2, 3), torch.float32),), line)


def context(
    *reads: str, cause: str = "user torch_xla.sync", provenances: tuple[Provenance, ...] = (UNKNOWN,) * 9
) -> RecompilationContext:
    return RecompilationContext("train.py:9", cause, reads, provenances, 3)


EXP, RELU = op("aten::exp"), op("aten::relu")
CASES = {
    "inputs": (graph(EXP), graph(EXP, leaves=((4, 3),)), ("float32[2, 3]", "float32[4, 3]", "drop_last")),
    "buckets": (graph(EXP), graph(EXP, leaves=((2, 5),)), ("float32[2, 5]", "buckets")),
    "added": (graph(EXP), graph(EXP, RELU), ("added aten::relu", "torch.where")),
    "removed": (graph(EXP, RELU), graph(RELU), ("removed aten::exp",)),
    "argument": (
        graph(op("aten::cumsum", p1=0)),
        graph(op("aten::cumsum", p1=1)),
        ("argument `dim` of aten::cumsum changed from 0 to 1", "keep it the same"),
    ),
    "special number": (
        graph(op("aten::add.Scalar", p1=1)),
        graph(op("aten::add.Scalar", p1=ScalarInput("int"))),
        ("changed from 1 to a program input (int)", "XLA_NO_SPECIAL_SCALARS"),
    ),
    "special numbers": (
        graph(op("aten::gt.Scalar", p1=0)),
        graph(op("aten::gt.Scalar", p1=1)),
        ("changed from 0 to 1", "XLA_NO_SPECIAL_SCALARS"),
    ),
    "exponent": (
        graph(op("aten::pow.Tensor_Scalar", p1=0)),
        graph(op("aten::pow.Tensor_Scalar", p1=1)),
        ("`exponent` of aten::pow.Tensor_Scalar changed from 0 to 1", "keep it as a tensor"),
    ),
    "no tensor there": (
        graph(op("aten::arange", p0=5)),
        graph(op("aten::arange", p0=6)),
        ("`end` of aten::arange changed from 5 to 6", "keep it the same"),
    ),
    "a float": (
        graph(op("aten::bernoulli.p", p1=0.1)),
        graph(op("aten::bernoulli.p", p1=0.2)),
        ("`p` of aten::bernoulli.p changed from 0.1 to 0.2", "keep it the same"),
    ),
    "type of a number": (
        graph(op("aten::add.Scalar", p1=ScalarInput("int"))),
        graph(op("aten::add.Scalar", p1=ScalarInput("float"))),
        ("same type",),
    ),
    "wiring": (graph(op("aten::add.Tensor", 0, 1)), graph(op("aten::add.Tensor", 0, 0)), ("connected differently",)),
    "results": (graph(EXP), graph(EXP, roots=(0, 1)), ("+1 results", "keep the same tensors")),
}


def test_internal_ops_are_not_shown() -> None:
    """Reading another result of an op is a change of its index, not of an internal op."""
    old, new = (graph(op("aten::unbind.int"), op("torch_xla::getitem", 1, p1=index)) for index in (1, 2))
    found = recompilation_explanation.explain_difference(diff_summaries(old, new), context())
    assert "the constant argument `index` of aten::unbind.int changed from 1 to 2" in found.text
    assert ".tolist()" in found.advice and "getitem" not in found.text


def test_ops_that_only_moved_are_not_added() -> None:
    old, new = graph(EXP, RELU, op("aten::sin")), graph(RELU, EXP, op("aten::sin"))
    found = recompilation_explanation.explain_difference(diff_summaries(old, new), context())
    assert "the same ops run in another order" in found.text and "added" not in found.text


@pytest.mark.parametrize("case", CASES)
def test_paragraph(case: str) -> None:
    old, new, parts = CASES[case]
    found = recompilation_explanation.explain_difference(diff_summaries(old, new), context())
    assert all(part in found.text for part in parts), found.text
    assert "train.py:9" in found.text and "  " not in found.text


def test_the_source_line_of_the_op_takes_precedence() -> None:
    """If source lines are captured, the line of the op takes precedence over that of the barrier."""
    old, new = graph(op("aten::cumsum", line="net.py:3", p1=0)), graph(op("aten::cumsum", line="net.py:3", p1=1))
    found = recompilation_explanation.explain_difference(diff_summaries(old, new), context())
    assert found.line == "net.py:3" and "aten::cumsum at net.py:3" in found.text
    found = recompilation_explanation.explain_difference(
        diff_summaries(graph(EXP), graph(EXP, op("aten::relu", line="net.py:7"))), context()
    )
    assert found.line == "net.py:7" and "aten::relu (first at net.py:7)" in found.text


def test_the_line_that_decides_comes_first(tmp_path: object) -> None:
    path = f"{tmp_path}/loop.py"
    with open(path, "w") as file:
        file.write("print(loss.item())\nif loss.item() > 3:\n    pass\n")
    found = recompilation_explanation.explain_difference(
        diff_summaries(graph(EXP), graph(EXP, RELU)), context(f"{path}:1", f"{path}:2")
    )
    assert found.kind == "branch" and found.line == f"{path}:2" and f"{path}:1" not in found.text


def test_the_uploaded_input_is_the_cause() -> None:
    """An input that a program computed from one of another shape is a consequence."""
    old, new = graph(EXP, leaves=((8, 2), (8, 3))), graph(EXP, leaves=((5, 2), (5, 3)))
    provenances = (Provenance("result", "train.py:5"), Provenance("upload", "train.py:4"))
    found = recompilation_explanation.explain_difference(diff_summaries(old, new), context(provenances=provenances))
    assert found.line == "train.py:4" and found.details["inputs"] == [(1, "float32[8, 3]", "float32[5, 3]")]
    only_results = recompilation_explanation.explain_difference(
        diff_summaries(old, new), context(provenances=(provenances[0],) * 2)
    )
    assert only_results.kind == "derived"


def test_graph_limit() -> None:
    from torch_xla._engine.diagnostics import sync_reasons

    found = recompilation_explanation.explain_difference(
        diff_summaries(graph(EXP), graph(EXP, RELU)), context("a.py:1", cause=sync_reasons.LIMIT)
    )
    assert found.kind == "limit" and "torch_xla.sync()" in found.advice


def test_closest_match() -> None:
    a, b, c = graph(EXP, RELU), graph(EXP, RELU, leaves=((7, 3),)), graph(EXP, EXP, EXP, RELU)
    assert nearest_summary(graph(EXP, EXP, RELU), [c, a, b]) in (a, b, c)
    assert nearest_summary(graph(EXP, RELU, leaves=((9, 3),)), [c, a, b]) is b, "the latest of equal matches"
    assert nearest_summary(graph(EXP, RELU), [a, b, c]) is a
    assert nearest_summary(a, []) is None


def test_long_graphs_are_compared_by_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    old = graph(*[EXP, RELU] * 30)
    new = graph(*[RELU, EXP] * 31, op("aten::sin"), RELU)
    exact = diff_summaries(old, new)
    monkeypatch.setattr(graph_diff, "_DIFF_LIMIT", 10)
    rough = diff_summaries(old, new)
    for found in (exact, rough):
        added = Counter(o.op for o in found.added) - Counter(o.op for o in found.removed)
        assert added == Counter({"aten::sin": 1, "aten::relu": 2, "aten::exp": 1})


def test_graphs_interpreted_at_an_unstable_site_were_not_evicted() -> None:
    """A graph that recurs is compiled; the unstable site was reported before."""
    fresh = RecompilationTracker()
    reported: list[recompilation_explanation.Explanation] = []
    site = (0, "read", "train.py:9")
    with fresh.report_all(reported.append):
        for size in (3, 4):
            fresh.compiled(site, graph(EXP, leaves=((size, 3),)), context())
            fresh.ran(site)
        fresh.report_unstable_site(site, graph(EXP, leaves=((5, 3),)), context())
        found = fresh.compiled(site, graph(EXP, leaves=((5, 3),)), context())
    assert found is not None and found.kind == "derived", found
    assert ["changes on every call at train.py:9 (float32[" in e.text for e in reported] == [False, True]
    assert "TORCH_XLA_COMPILE_POLICY=compile" in reported[1].advice and "explain changing-shapes" in reported[1].text


def test_consequences_in_the_same_step_are_not_reported() -> None:
    fresh = RecompilationTracker()
    reported: list[recompilation_explanation.Explanation] = []
    site = (0, "user torch_xla.sync", "train.py:9")
    with fresh.report_all(reported.append):
        for size in (8, 8, 5):
            fresh.compiled(
                site, graph(EXP, leaves=((size, 3),)), context(provenances=(Provenance("upload", "t.py:1"),))
            )
            fresh.ran(site)
            fresh.compiled((0, "read", "t.py:5"), graph(RELU, leaves=((size,),)), context(provenances=(UNKNOWN,)))
            fresh.ran((0, "read", "t.py:5"))
            step_timings.end_step(0)
    assert [e.kind for e in reported] == ["inputs"]
