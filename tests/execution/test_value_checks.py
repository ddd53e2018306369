"""Values out of range: programs and the interpreter report what the CPU reports, and the next step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import run_script
from torch_xla._engine import recorder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.execution import compile_policy, executor, value_errors
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering import value_checks
from torch_xla._engine.recorder import source_info

Call = Callable[[torch.Tensor, torch.Tensor], Any]


def _rows(values: torch.Tensor) -> torch.Tensor:
    return values[:, None].expand(-1, 4).contiguous()


#: name -> (a call with a matrix [5, 4] and an index tensor, valid indices, indices of which one is invalid).
INDEX_CALLS: dict[str, tuple[Call, list[int], list[int]]] = {
    "embedding": (lambda x, i: F.embedding(i, x), [0, 4], [1, 5]),
    "embedding of -1": (lambda x, i: F.embedding(i, x), [0, 4], [1, -1]),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), [0, 4], [1, 7]),
    "gather": (lambda x, i: x.gather(0, _rows(i)), [0, 4], [1, 7]),
    "gather of -1": (lambda x, i: x.gather(1, i[:, None]), [3, 0], [1, -1]),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, _rows(i), 0), [0, -5], []),
    "scatter": (lambda x, i: x.scatter(0, _rows(i), x), [0, 4], [1, 7]),
    "scatter_": (lambda x, i: x.clone().scatter_(0, _rows(i), 1.0), [0, 4], [1, -1]),
    "scatter of a reduction": (lambda x, i: x.scatter(0, _rows(i), 2.0, reduce="add"), [0, 4], [1, 7]),
    "scatter_add": (lambda x, i: x.scatter_add(0, _rows(i), x), [0, 4], [1, 7]),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, _rows(i), x, "amax"), [0, 4], [1, 7]),
    "index_select": (lambda x, i: x.index_select(0, i), [0, 4], [1, 7]),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones_like(x[:2])), [0, 4], [1, -1]),
    "index_add of a vector": (lambda x, i: x[0].index_add(0, i, x[0, :2]), [0, 3], [1, 4]),
    "index_copy": (lambda x, i: x.index_copy(0, i, torch.ones_like(x[:2])), [0, 4], [1, 7]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 2.0), [0, -4], [1, 4]),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:2], "prod"), [0, 4], [1, 7]),
    "index": (lambda x, i: x[i], [0, -5], [1, -6]),
    "index of the second dim": (lambda x, i: x[:, i], [3, -4], [1, 4]),
    "index of two dims": (lambda x, i: x[i.abs() * 0, i], [3, -4], [1, 4]),
    "index_put": (lambda x, i: x.index_put((i,), torch.zeros((), device=x.device)), [0, -5], [1, 5]),
    "index_put that adds": (lambda x, i: x.index_put((i, i), x[0, :2], accumulate=True), [0, -4], [1, 5]),
    "take": (lambda x, i: x.take(i), [19, -20], [1, 20]),
    "put": (lambda x, i: x.put(i, x[0, :2]), [19, -20], [1, -21]),
    "nll_loss": (lambda x, i: F.nll_loss(x[:2], i), [0, -100], [1, 4]),
    "nll_loss of an image": (lambda x, i: F.nll_loss(x.reshape(2, 5, 2, 1), i.expand(2, 2)[..., None]), [0, 3], [1, 9]),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:2], i), [0, 3], [1, -7]),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x[:2], i), [0, 3], [1, 4]),
}  # fmt: skip

#: name -> (a call with a tensor, valid values, invalid values)
VALUE_CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], list[Any], list[Any]]] = {
    "floor_divide": (lambda d: 7 * torch.ones_like(d) // d, [2, -3], [2, 0]),
    "floor_divide by a number": (lambda d: d // int(0 * d.numel()), [], [1]),
    "remainder": (lambda d: (d + 7) % d, [2, -3], [0, 2]),
    "remainder of a number": (lambda d: 7 % d, [2, -3], [0, 2]),
    "fmod": (lambda d: (d + 7).fmod(d), [2, -3], [0, 2]),
    "fmod_": (lambda d: (d + 7).fmod_(d), [2, -3], [0, 2]),
    "div, truncated": (lambda d: torch.div(d + 7, d, rounding_mode="trunc"), [2, -3], [0, 2]),
    "div, rounded down": (lambda d: torch.div(d + 7, d, rounding_mode="floor"), [2, -3], [0, 2]),
    "multinomial, negative": (lambda p: torch.multinomial(p, 2).sort()[0], [1.0, 2.0], [-1.0, 2.0]),
    "multinomial, nan": (lambda p: torch.multinomial(p, 2).sort()[0], [1.0, 2.0], [float("nan"), 2.0]),
    "multinomial of zeros": (lambda p: torch.multinomial(p, 1), [], [0.0, 0.0]),
    "multinomial of a row of zeros": (lambda p: torch.multinomial(p.reshape(2, 2), 1, True), [], [1.0, 0.0, 0.0, 0.0]),
}


def _call(name: str, values: list[Any], device: str) -> torch.Tensor:
    if name in INDEX_CALLS:
        x = (torch.arange(20.0).reshape(5, 4) / 7).to(device)
        return INDEX_CALLS[name][0](x, torch.tensor(values).to(device))  # type: ignore[no-any-return]
    return VALUE_CALLS[name][0](torch.tensor(values).to(device))  # type: ignore[no-any-return]


def _error(name: str, values: list[Any], device: str) -> tuple[type[Exception], str]:
    def run() -> None:
        kept = _call(name, values, device)
        torch_xla.sync()
        del kept

    with pytest.raises((IndexError, RuntimeError)) as raised:
        run()
    return raised.type, str(raised.value).splitlines()[0]


def _set_policy(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", policy)
    program_cache.cache.clear()
    compile_policy.reset()


@pytest.fixture(params=["compile", "eager"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    _set_policy(monkeypatch, request.param)
    yield request.param
    compile_policy.reset()


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", [*INDEX_CALLS, *VALUE_CALLS])
def test_invalid_values_raise_the_error_of_the_cpu(name: str, policy: str) -> None:
    _, valid, invalid = {**INDEX_CALLS, **VALUE_CALLS}[name]
    if valid:
        torch.testing.assert_close(_call(name, valid, "xla").cpu(), _call(name, valid, "cpu"))
    if invalid:
        assert _error(name, invalid, "xla") == _error(name, invalid, "cpu")
        torch_xla.sync()  # raised once
    if valid:
        torch.testing.assert_close(_call(name, valid, "xla").cpu(), _call(name, valid, "cpu"))


def test_floats_and_modes_without_rounding_are_divided(policy: str) -> None:
    zero, zeros = torch.tensor([0.0], device="xla"), torch.tensor([0], device="xla")
    results = [zero // zero, 7 % zero, torch.div(zeros, zeros), zeros / 0]
    torch_xla.sync()
    assert all(result.isnan().item() for result in results)


def test_a_read_raises_and_the_step_has_run(policy: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(index: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.embedding(torch.tensor([index], device="xla"), weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step(1)
        torch_xla.sync()
    before = weight.detach().cpu()
    step(9)
    with pytest.raises(IndexError, match="index out of range in self"):
        torch_xla.sync()
    torch.testing.assert_close(weight.detach().cpu(), before)  # the gradient of an index out of range is dropped
    loss = step(9)
    with pytest.raises(IndexError, match="index out of range in self"):
        loss.item()
    torch_xla.sync()  # nothing is left to raise
    loss = step(1)
    torch_xla.sync()
    assert loss.isfinite().item()
    assert weight.cpu()[1, 0].item() == before[1, 0].item() - 0.5


class _LateRow:
    """The result of the checks of a program, which XLA notes as ready after the other results."""

    def __init__(self, row: jax.Array) -> None:
        self._row = row

    def is_ready(self) -> bool:
        return False

    def copy_to_host_async(self) -> None:
        pass

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._row)


def test_a_read_waits_for_the_checks_of_its_program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inspects earlier launches as well, and no later one."""
    _set_policy(monkeypatch, "compile")
    monkeypatch.setattr(value_errors.replica_program, "to_local_array", _LateRow)
    x = torch.ones(4, 2, device="xla")
    drawn = []
    for index in (1, 9, 2, -7):
        drawn.append(F.embedding(torch.tensor([index], device="xla"), x))
        torch_xla.sync()
    assert drawn[0].tolist() == [[1.0, 1.0]]
    with pytest.raises(IndexError, match="index out of range in self"):
        drawn[2].tolist()
    assert drawn[2].tolist() == [[1.0, 1.0]]
    with pytest.raises(IndexError, match="index out of range in self"):
        torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)  # nothing is left to raise


def test_the_first_failure_in_recorded_order_is_raised(policy: str) -> None:
    x, index = torch.ones(3, 4, device="xla"), torch.tensor([[7]], device="xla")
    kept: list[Any] = [x.sum(), x.take(index + 90), x.gather(1, index)]
    with pytest.raises(IndexError, match="access index 97"):
        torch_xla.sync()
    kept += [x.gather(1, index), x.take(index + 90)]
    with pytest.raises(RuntimeError, match="index 7 is out of bounds for dimension 1 with size 4"):
        torch_xla.sync()
    assert kept[0].item() == 12


def test_the_message_names_operator_line_and_setting() -> None:
    capturing = source_info.is_capturing()
    source_info.set_capture(True)
    try:
        for _ in range(2):  # from the second time on, the program is cached
            y = torch.ones(3, device="xla")[torch.tensor([4], device="xla")]
            with pytest.raises(IndexError) as raised:
                xm.mark_step()
    finally:
        source_info.set_capture(capturing)
    text = str(raised.value)
    assert "aten::index.Tensor (recorded at " in text and "test_value_checks.py:" in text, text
    assert "TORCH_XLA_CHECK_INDICES=auto" in text and "torch-xla explain index-out-of-range" in text
    assert y.item() == 1


def _graph_results(record: Callable[[], Any]) -> int:
    """Return the number of results of the program of a graph, in excess of its values."""
    kept = record()
    graph = recorder.bindings().collect(0)
    run = GraphRun(graph, False, "test")
    found = program_cache.compile_and_store(run, executor.Placement.of(run), run.leaves())
    assert found.compiled is not None and kept is not None
    return len(found.compiled.out_info) - graph.root_count


def _gpt_step() -> Any:
    table, tokens = torch.ones(9, 4, device="xla", requires_grad=True), torch.tensor([[1, 2, 3]], device="xla")
    for _ in range(3):
        logits = F.embedding(tokens, table) @ table.t()
        loss = F.cross_entropy(logits[0, :-1], tokens[0, 1:])
        loss.backward()
    return table.grad, loss


def test_a_program_has_one_more_result_if_it_checks_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _graph_results(_gpt_step) == 1
    assert _graph_results(lambda: torch.ones(3, device="xla").sin()) == 0
    assert _graph_results(lambda: torch.ones(3, device="xla") / 0) == 0
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_CHECK_INDICES", "0")
    assert _graph_results(_gpt_step) == 0


def test_the_setting_and_the_platform_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for value in ("0", "1", "auto"):
        monkeypatch.setitem(settings.__dict__, "TORCH_XLA_CHECK_INDICES", value)
        found[value] = [value_checks.is_enabled(runs_in_process) for runs_in_process in (True, False)]
    assert found == {"0": [False] * 2, "1": [True] * 2, "auto": [True, False]}


def test_large_operands_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather() -> torch.Tensor:
        return torch.ones(3, device="xla").take(torch.zeros(1 << 16, dtype=torch.int64, device="xla"))

    def gather_more() -> torch.Tensor:
        return torch.ones(3, device="xla").take(torch.zeros((1 << 16) + 1, dtype=torch.int64, device="xla"))

    assert [_graph_results(gather), _graph_results(gather_more)] == [1, 0]
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_CHECK_INDICES", "1")
    program_cache.cache.clear()
    assert [_graph_results(gather), _graph_results(gather_more)] == [1, 1]


def test_an_index_of_a_gradient_is_checked_once() -> None:
    import jax.numpy as jnp

    checks, index, x = value_checks.CheckCollector(), jnp.array([1, 7]), jnp.zeros(5)
    assert checks.result() is None
    for node, op in ((4, "aten::scatter_add"), (2, "aten::gather")):
        checks.add(node, op, lambda value: value, [x, 0, index, x])
    with recorder.enable_x64():
        row = checks.result()
    assert len(checks._found) == 1 and row is not None
    assert row.tolist() == [value_checks.Failure.INDEX_RUNTIME_ERROR, 2, 0, 5, 7]


def test_an_index_on_the_cpu_is_checked_when_it_is_recorded() -> None:
    x = torch.ones(3, 4, device="xla")
    for call in (lambda: x[torch.tensor([3])], lambda: x[:, torch.tensor([0, -5])], lambda: x[torch.tensor([3]), 0]):
        with pytest.raises(IndexError, match=r"index (3|-5) is out of bounds for dimension [01] with size [34]"):
            call()
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 1 with size 4"):
        x[torch.tensor([1]), torch.tensor([4], dtype=torch.int32)] = 0.0
    assert x[torch.tensor([-3]), torch.tensor([3])].item() == 1


EAGER = """
import torch, torch_xla
x = torch.ones(3, device="xla")
index = torch.tensor([5], device="xla")
try:
    y = x[index]  # in eager mode the error is raised here
    print("recorded")
    y.cpu()
except IndexError as error:
    print(str(error).splitlines()[0])
torch_xla.sync()
print(x[index - 5].item())
"""


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"XLA_USE_EAGER_DEBUG_MODE": "1"}, ["index 5 is out of bounds for dimension 0 with size 3", "1.0"]),
        ({"XLA_GET_TENSORS_OPBYOP": "1"}, ["recorded", "index 5 is out of bounds for dimension 0 with size 3", "1.0"]),
        ({"TORCH_XLA_CHECK_INDICES": "1"}, ["recorded", "index 5 is out of bounds for dimension 0 with size 3", "1.0"]),
        ({"TORCH_XLA_CHECK_INDICES": "0"}, ["recorded", "1.0"]),
    ],
)
def test_check_indices_of_modes(variables: dict[str, str], shown: list[str]) -> None:
    assert run_script(EAGER, **variables).stdout.splitlines() == shown
