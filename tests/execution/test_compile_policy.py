"""Graphs that are computed without being compiled: which ones, and that they give what programs give.

What decides is tested by counts; what is computed against the CPU, and random numbers against the compiled program.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import Phase, given
from hypothesis import settings as options

import torch_xla
from tests.fuzz import test_random_programs
from tests.ops import check, database, exceptions
from tests.support.helpers import Counts, counts, run_script
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import observer
from torch_xla._engine.execution import compile_policy

NAMES = "CompileTime", "ExecuteTime", "InterpretedGraphs", "InterpreterUnsupportedGraphs", "InterpreterFallbackOps"


def _set(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setitem(settings.__dict__, name, value)
    program_cache.cache.clear()
    compile_policy.reset()


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="auto")
    yield
    compile_policy.reset()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="eager")
    yield
    compile_policy.reset()


def _grows(lengths: list[int], steps: Callable[[], Any] = torch_xla.sync) -> tuple[Counts, list[torch.Tensor]]:
    weight, found = torch.full((3, 5), 0.5, device="xla"), []
    torch_xla.sync()
    with counts() as moved:
        for n in lengths:
            found.append(torch.ones(n, 3).to("xla") @ weight)
            steps()
    return moved, found


@pytest.mark.parametrize(
    ("lengths", "compiled", "interpreted"),
    [
        pytest.param([2, 3, 4, 5, 6], 0, 5, id="none recurs"),
        pytest.param([2, 2, 3, 3, 4, 4, 5, 5], 4, 4, id="all recur"),
        pytest.param([2, 3, 3, 2], 2, 2, id="one other was interpreted: stable"),
        pytest.param([2, 3, 3, 4, 4, 4], 2, 3, id="stable after the first step of a training"),
        pytest.param([2, 3, 4, 5, 2, 3], 0, 6, id="a recurrence among others is at an unstable site"),
        pytest.param([2, 3, 3, 2, 4, 5, 6], 2, 5, id="what was compiled does not count"),
        pytest.param([2, 3] + [4] * 19, 1, 18, id="unstable: compiled after 16 runs"),
        pytest.param([2, 3, 4] + [2] * 16, 1, 18, id="unstable: compiled after 16 runs, not in a row"),
    ],
)
def test_which_graphs_are_compiled(auto: None, lengths: list[int], compiled: int, interpreted: int) -> None:
    moved, found = _grows(lengths)
    assert (moved["CompileTime"], moved["InterpretedGraphs"]) == (compiled, interpreted)
    for n, value in zip(lengths, found, strict=True):
        assert torch.equal(value.cpu(), torch.full((n, 5), 1.5))


def test_sites_are_told_apart(auto: None) -> None:
    """Two graphs of one line, and one of another, are not unstable."""
    _grows([2, 3], lambda: torch_xla.sync())
    moved, _ = _grows([4, 5, 5], lambda: torch_xla.sync(wait=True))
    assert moved["CompileTime"] == 1


def test_eager_compiles_nothing(eager: None) -> None:
    assert _grows([2, 2, 2, 3, 3])[0].only(*NAMES) == {"InterpretedGraphs": 5}


def test_compile_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="compile")
    assert _grows([2, 3, 4, 5, 6])[0].only(*NAMES) == {"CompileTime": 5, "ExecuteTime": 5}


@pytest.mark.parametrize(
    ("policy", "interpreted"),
    [
        ("auto", "4"),
        ("eager", "4"),
        ("compile", "None"),
    ],
)
def test_environment(policy: str, interpreted: str) -> None:
    program = """
        import torch, torch_xla
        import torch_xla.debug.metrics as met

        for n in range(4):
            y = torch.ones(n + 1).to("xla") * 3
            torch_xla.sync()
        print(y.tolist(), met.counter_value("InterpretedGraphs"))
    """
    done = run_script(program, TORCH_XLA_EXPLAIN_RECOMPILATIONS="0", TORCH_XLA_COMPILE_POLICY=policy)
    assert done.stdout == f"[3.0, 3.0, 3.0, 3.0] {interpreted}\n"


def test_an_unstable_line_is_reported_once(auto: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_xla.recompilation"):
        _grows([21, 22, 23, 24, 25])
    reports = [" ".join(record.getMessage().split()) for record in caplog.records]
    # Where tests before have trained at this line, its second program is reported, too.
    (text,) = [text for text in reports if "changes on every call at" in text]
    assert "float32[22, 3] to float32[23, 3]" in text
    assert f"at {shorten_paths(__file__)}:" in text and "torch-xla explain changing-shapes" in text
    assert "TORCH_XLA_COMPILE_POLICY=compile" in text


def test_first_run(auto: None) -> None:
    """Not compiled when it is new, and compiled when it recurs, to the same values."""
    x = torch.arange(12.0).reshape(3, 4)
    for run, expected in enumerate(
        [{"InterpretedGraphs": 1}, {"CompileTime": 1, "ExecuteTime": 1}, {"ExecuteTime": 1}]
    ):
        with counts() as moved:
            y = (x.to("xla").t() @ x.to("xla")).softmax(0)
            torch_xla.sync()
        assert moved.only(*NAMES) == expected, run
        torch.testing.assert_close(y.cpu(), (x.t() @ x).softmax(0))


def test_what_would_need_much_more_memory_is_compiled(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_policy, "_MOST_KEPT", 4000)
    for size, expected in ((1000, {"InterpretedGraphs": 1}), (1001, {"CompileTime": 1, "ExecuteTime": 1})):
        x = torch.zeros(size).to("xla")
        torch_xla.sync()
        x.add_(1)
        with counts() as moved:
            torch_xla.sync()
        assert moved.only(*NAMES) == expected


def test_a_region_that_is_compiled_is_compiled(eager: None) -> None:
    function = torch_xla.compile(lambda x: x * 3 + 1)
    x = torch.ones(3).to("xla")
    with counts() as moved:
        function(x)
    assert moved.only(*NAMES) == {"CompileTime": 1, "ExecuteTime": 1}


def test_whoever_looks_at_programs_gets_them(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener:
        def on_compile_begin(self, *_: Any) -> None: ...
        def on_compile_end(self, *_: Any) -> None: ...
        def on_launch(self, *_: Any) -> None: ...
        def on_fallback(self, *_: Any) -> None: ...
        def on_step_end(self, *_: Any) -> None: ...

    monkeypatch.setattr(observer, "listeners", [Listener()])
    with counts() as moved:
        y = torch.ones(3).to("xla") * 3 + 2
        torch_xla.sync()
    assert moved.only(*NAMES) == {"CompileTime": 1, "ExecuteTime": 1} and y.cpu().tolist() == [5, 5, 5]


def test_training_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are those of programs up to rounding, and the same bits twice: dropout, momentum and norms included."""

    def train() -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Dropout(0.5), torch.nn.Linear(4 * 36, 5),
        ).to("xla")  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for step in range(5):
            images = torch.randn(4 + step, 1, 8, 8, generator=torch.Generator().manual_seed(step)).to("xla")
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), torch.arange(4 + step, device="xla") % 5)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            losses.append(loss)
        return [loss.item() for loss in losses]

    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="eager")
    with counts() as moved:
        losses = train()
    assert moved["InterpretedGraphs"] >= 5 and moved["InterpreterUnsupportedGraphs"] == 0
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="eager")
    assert train() == losses
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="compile")
    torch.testing.assert_close(train(), losses, rtol=1e-4, atol=1e-5)


SHAPES: list[tuple[int, ...]] = [(3, 7), (), (2, 0)]
DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "rand double": lambda x: torch.rand(x.shape, device=x.device, dtype=torch.float64),
    "rand complex": lambda x: torch.rand(x.shape, device=x.device, dtype=torch.complex64),
    "randn like": torch.randn_like,
    "randn bfloat16": lambda x: torch.randn(x.shape, device=x.device, dtype=torch.bfloat16),
    "uniform": lambda x: x.clone().uniform_(-2, 3),
    "normal": lambda x: x.clone().normal_(1, 2),
    "normal of tensors": lambda x: torch.normal(x, x.abs() + 1),
    "normal of one": lambda x: torch.normal(x, 2.0),
    "log normal": lambda x: x.clone().log_normal_(),
    "exponential": lambda x: x.clone().exponential_(2.0),
    "geometric": lambda x: x.clone().geometric_(0.3),
    "cauchy": lambda x: x.clone().cauchy_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli p": lambda x: x.clone().bernoulli_(0.3),
    "bernoulli of one p": lambda x: x.clone().bernoulli_(torch.tensor(0.3, device=x.device)),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "randint": lambda x: torch.randint(3, 1000, x.shape, device=x.device),
    "randint like": lambda x: torch.randint_like(x, 1000),
    "random": lambda x: x.clone().random_(),
    "random int8": lambda x: x.to(torch.int8).random_(-3, 100),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 0.5),
    "poisson": lambda x: torch.poisson(x.abs() * 3),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
    "permutation": lambda x: torch.randperm(x.numel(), device=x.device),
    "multinomial": lambda x: torch.multinomial(torch.ones(2, 1 + x.numel(), device=x.device), 3, replacement=True),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *(torch.ones(1, 1, 1 + x.numel(), 4, device=x.device) for _ in range(3)), dropout_p=0.5
    ),
}


@pytest.mark.parametrize("shape", [SHAPES[0], *(pytest.param(s, marks=pytest.mark.sweep) for s in SHAPES[1:])])
def test_draws_are_those_of_a_program(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distribution, the second draw after a seed as well: the same bits."""
    size = torch.Size(shape).numel()

    def draw() -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, max(size, 1))[:size].reshape(shape).to("xla")
        torch.manual_seed(7)
        found = [draw(x) for draw in DRAWS.values() for _ in range(2)]
        torch_xla.sync()
        return [tensor.cpu() for tensor in found]

    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="compile")
    compiled = draw()
    _set(monkeypatch, TORCH_XLA_COMPILE_POLICY="eager")
    with counts() as moved:
        interpreted = draw()
    assert moved["CompileTime"] == moved["OpByOpCompileCacheMiss"] and moved["InterpreterUnsupportedGraphs"] == 0
    names = [name for name in DRAWS for _ in range(2)]
    wrong = {n for n, a, b in zip(names, compiled, interpreted, strict=True) if not torch.equal(a, b)}
    assert not wrong


def test_draws_of_many_shapes_are_few_programs(eager: None) -> None:
    with counts() as moved:
        kept = [torch.nn.functional.dropout(torch.ones(n, 3).to("xla"), 0.5) for n in range(20, 50)]
        torch_xla.sync()
    assert moved["InterpreterFallbackOps"] == len(kept) == 30
    assert moved["OpByOpCompileCacheMiss"] <= 3  # results of at most 64, 128 and 256 elements


@pytest.mark.parametrize("variable", ["XLA_USE_32BIT_LONG", "XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_where_the_device_stores_narrower_dtypes(variable: str) -> None:
    """Numbers and draws are those of programs; so they are where each operation is a program."""
    program = """
        import torch, torch_xla
        from torch_xla._engine.base.settings import settings
        from torch_xla._engine.compilation import program_cache
        from torch_xla._engine.execution import compile_policy

        def values():
            torch.manual_seed(0)
            x = torch.arange(6.0).to("xla")
            y = torch.nn.functional.dropout(x.view(2, 3).t() + 1, 0.5)
            n = torch.randint(100, (4,), device="xla") + torch.arange(4, device="xla") * 3
            d = torch.rand(3, device="xla", dtype=torch.float64)
            x[1:3] = 7
            torch_xla.sync()
            return [t.cpu().tolist() for t in (x, y, n, d, torch.randn(5, device="xla"))]

        found = []
        for name, value in (("TORCH_XLA_COMPILE_POLICY", "compile"), ("TORCH_XLA_COMPILE_POLICY", "eager"),
                            ("XLA_SYNC_TENSORS_OPBYOP", True)):
            settings.__dict__[name] = value
            program_cache.cache.clear()
            compile_policy.reset()
            found.append(values())
        assert found[0] == found[1] == found[2], found
    """
    run_script(program, **{variable: "1"})


def test_what_a_kernel_refuses_is_compiled(eager: None, caplog: pytest.LogCaptureFixture) -> None:
    """An index beyond the end: the CPU's kernel raises where a program takes the last row."""
    x, index = torch.arange(6.0).reshape(3, 2).to("xla"), torch.tensor([0, 7]).to("xla")
    with caplog.at_level(logging.INFO, "torch_xla.execute"), counts() as moved:
        y = x[index] + 1
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            torch_xla.sync(wait=True)
    assert moved.only(*NAMES) == {"CompileTime": 1, "ExecuteTime": 1, "InterpreterUnsupportedGraphs": 1}
    assert "aten::index.Tensor: " in caplog.text and y.shape == (2, 2)


def test_another_default_dtype_is_compiled(eager: None) -> None:
    x = torch.arange(3, device="xla")
    torch.set_default_dtype(torch.float64)
    try:
        y = x.sqrt()
    finally:
        torch.set_default_dtype(torch.float32)
    expected = torch.arange(3).double().sqrt()  # MKL rounds the last bit of some differently
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-15, atol=0)


def test_results_share_no_memory(eager: None) -> None:
    """Not with what they were computed from, and not with each other: a program may write over each of them."""
    x = torch.arange(6.0).to("xla")
    torch_xla.sync()
    y = torch.ops.aten.alias.default(x).view(2, 3)
    z, w = y.t() + 0, y[1]
    v, u = (y * 2).view(6), (y * 2).view(3, 2)
    torch_xla.sync()
    for _ in range(3):
        for tensor in (y, z, w, v, u):
            tensor.add_(1)
        torch_xla.sync()
    base = torch.arange(6.0).reshape(2, 3) + 3
    base[1] += 3  # w is a part of y
    assert torch.equal(x.cpu(), base.reshape(6)) and torch.equal(w.cpu(), base[1])
    assert torch.equal(z.cpu(), torch.arange(6.0).reshape(2, 3).t() + 3)
    assert torch.equal(v.cpu(), torch.arange(6.0) * 2 + 3) and torch.equal(u.cpu(), v.cpu().reshape(3, 2))


class _Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} reached a mode of the user's")


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda: torch.inference_mode(), id="inference mode"),
        pytest.param(lambda: torch.autocast("cpu", torch.bfloat16), id="autocast"),
        pytest.param(lambda: torch.device("xla"), id="default device"),
        pytest.param(_Mode, id="dispatch mode"),
    ],
)
def test_no_mode_takes_part(eager: None, around: Callable[[], Any]) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    a, b = x.to("xla").requires_grad_(), x.to("xla")
    y = torch.nn.functional.dropout(a.t() @ b, 0.0) + torch.zeros_like(b).sum()
    with counts() as moved, around():
        torch_xla.sync()
    assert moved.only(*NAMES) == {"InterpretedGraphs": 1}
    assert torch.equal(y.cpu(), x.t() @ x)
    y.sum().backward()
    assert torch.equal(a.grad.cpu(), x.sum(1, keepdim=True).expand(3, 4))


def test_an_interrupt_loses_nothing(eager: None) -> None:
    """A signal whose handler raises, in the middle of the kernels: all is as it was, and computed by the next sync."""

    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    x = torch.full((400, 400), 1 / 400).to("xla")
    y = x
    for _ in range(400):
        y = y @ x
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.06)
        with counts() as moved, pytest.raises(Stop):
            torch_xla.sync()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert moved.only(*NAMES) == {}
    torch_xla.sync()
    torch.testing.assert_close(y.cpu(), x.cpu())


def test_programs_take_what_was_interpreted(auto: None) -> None:
    """A program that donates reads memory of torch's; what it replaces is not written over under its feet."""
    state, expected = torch.zeros(1000).to("xla"), torch.zeros(1000)
    for step in range(4):  # interpreted, compiled, known, known
        state.mul_(0.5).add_(1)
        expected.mul_(0.5).add_(1)
        torch_xla.sync()
        assert torch.equal(state.cpu(), expected), step


OPS = sorted(database.ops())[::13]


def test_ops_are_right_interpreted(eager: None) -> None:
    """Every 13th operator of torch's database, float32 and int64."""
    wrong = []
    for name in OPS:
        for dtype in (torch.float32, torch.int64):
            if dtype in database.ops()[name].dtypes:
                compile_policy.reset()
                outcome = check.check(name, dtype, "forward", 2)
                wrong += [outcome] if outcome.failed and not exceptions.reason(outcome) else []
    assert not wrong


@options(max_examples=300, derandomize=True, phases=(Phase.generate, Phase.shrink), **test_random_programs.OPTIONS)
@given(test_random_programs.PROGRAMS)
def test_random_programs_are_right_interpreted(eager: None, program: Any) -> None:
    compile_policy.reset()
    test_random_programs.run(program)
