"""Captured steps with buckets: what else reads or writes their values sees those of an uncaptured step."""

from __future__ import annotations

import copy
import gc
import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.fuzz import interrupts
from torch_xla._engine.compilation import bucketed_program
from torch_xla.debug import memory
from torch_xla.utils import dlpack

LAYERS = 12  # 24 parameters, and as many gradients and momenta


class Training:
    """A model whose parameters, gradients and momenta are in buckets if the step is captured."""

    def __init__(self, replay: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS))).to("xla")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = self.model, self.optimizer

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        self.step = torch_xla.compile(step, replay=replay)
        self.x = torch.linspace(-1, 1, 12, device="xla").reshape(3, 4)

    @property
    def weight(self) -> Tensor:
        """One of the parameters."""
        parameter: Tensor = self.model[3].weight  # type: ignore[assignment,union-attr]
        return parameter

    def values(self) -> list[Tensor]:
        """All state, on the CPU."""
        momenta = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [each.detach().cpu() for each in (*self.model.parameters(), *momenta, *gradients)]


def counts() -> tuple[int, int]:
    """Buckets that were filled and split since the last clear."""
    return met.counter_value("BucketFills") or 0, met.counter_value("BucketSplits") or 0


@pytest.fixture(autouse=True)
def cleared() -> None:
    """No counts of other tests."""
    met.clear_counters()


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    """Bit by bit."""
    assert len(a) == len(b)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_captured_step_passes_a_few_arrays() -> None:
    """Parameters and momenta in one bucket, gradients in another: filled once, split when the values are read."""
    captured, plain = Training(replay=True), Training(replay=False)
    for _ in range(10):
        assert torch.equal(captured.step(captured.x).cpu(), plain.step(plain.x).cpu())
    assert counts() == (1, 0)
    assert met.counter_value("ReplayedSteps") == 7
    assert_equal(captured.values(), plain.values())
    assert counts() == (1, 2)


def _save(training: Training) -> Any:
    file = io.BytesIO()
    torch.save(training.model.state_dict(), file)
    return list(torch.load(io.BytesIO(file.getvalue()), map_location="cpu").values())


def _write(training: Training) -> None:
    with torch.no_grad():
        training.weight.mul_(0.5)


def _load(training: Training) -> None:
    state = {name: torch.full_like(value, 0.25) for name, value in training.model.state_dict().items()}
    training.model.load_state_dict(state)


def _write_through_data(training: Training) -> None:
    training.weight.data[0] = 3.0


def _train_another_way(training: Training) -> Tensor:
    training.optimizer.zero_grad()
    loss = training.model(training.x * 2).square().mean()
    loss.backward()
    training.optimizer.step()
    return loss


def _scale_gradients_and_step(training: Training) -> None:
    for parameter in training.model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    training.optimizer.step()


#: What happens between two steps. The results are compared with those of an uncaptured step.
BETWEEN: dict[str, Callable[[Training], Any]] = {
    "cpu()": lambda t: t.weight.detach().cpu(),
    "item()": lambda t: t.weight[0, 0].item(),
    "a gradient": lambda t: t.weight.grad.cpu(),  # type: ignore[union-attr]
    "the state of the optimizer": lambda t: next(iter(t.optimizer.state.values()))["momentum_buffer"].cpu(),
    "clone()": lambda t: t.weight.detach().clone(),
    "a view": lambda t: t.weight.detach()[1:, :2].t() + 1,
    "deepcopy": lambda t: list(copy.deepcopy(t.model).state_dict().values()),
    "torch.save": _save,
    "numpy": lambda t: torch.from_numpy(t.weight.detach().cpu().numpy().copy()),
    "dlpack": lambda t: torch.from_dlpack(dlpack.to_dlpack(t.weight.detach())).clone(),
    "to()": lambda t: t.weight.detach().to(torch.float64),
    "write in place": _write,
    "write through .data": _write_through_data,
    "load_state_dict": _load,
    "an uncaptured step": _train_another_way,
    "gradients scaled, optimizer.step()": _scale_gradients_and_step,
    "clip_grad_norm_": lambda t: nn.utils.clip_grad_norm_(t.model.parameters(), 0.1),
    "zero_grad": lambda t: t.optimizer.zero_grad(),
    "evaluation": lambda t: t.model(t.x).detach(),
    "memory.buffers": lambda t: [len(memory.buffers()) > 0],
}


def _to_cpu(found: Any) -> list[Any]:
    values = found if isinstance(found, list) else [found]
    return [value.cpu() if isinstance(value, Tensor) else torch.tensor(value or 0.0) for value in values]


@pytest.mark.parametrize("held", [False, True], ids=["released", "held"])
@pytest.mark.parametrize("name", BETWEEN)
def test_what_happens_between_steps(name: str, held: bool) -> None:
    """The values are those of an uncaptured step; what is held keeps its values over the next steps."""
    results = []
    for replay in (True, False):
        training = Training(replay)
        found, kept = [], []
        for i in range(12):
            found.append(training.step(training.x).cpu())
            if i in (5, 6, 9):
                kept.append(BETWEEN[name](training))
                if not held:
                    found += _to_cpu(kept.pop())
        found += [value for each in kept for value in _to_cpu(each)]
        results.append(found + training.values())
    assert_equal(*results)
    assert met.counter_value("BucketFills")


def test_values_that_are_read_in_each_step() -> None:
    """Buckets that are split after each step are given up: from then on the step passes single arrays."""
    captured, plain = Training(replay=True), Training(replay=False)
    for _ in range(30):
        for training in (captured, plain):
            training.step(training.x)
        assert torch.equal(captured.weight.detach().cpu(), plain.weight.detach().cpu())
    assert counts() == (8, 8)
    assert_equal(captured.values(), plain.values())


def test_values_that_are_read_now_and_then() -> None:
    """Reading every fifth step does not give up the buckets."""
    captured, plain = Training(replay=True), Training(replay=False)
    for i in range(63):
        for training in (captured, plain):
            training.step(training.x)
        if i % 5 == 0:
            assert torch.equal(captured.weight.detach().cpu(), plain.weight.detach().cpu())
    assert counts() == (13, 12)


def test_two_captured_steps_share_parameters() -> None:
    """Each takes the values from the bucket of the other; alternating in each call gives the buckets up."""
    results = []
    for replay in (True, False):
        training = Training(replay)
        model = training.model

        def decay(model: nn.Module = model) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.99)

        second = torch_xla.compile(decay, replay=replay)
        losses = []
        for _ in range(25):
            losses.append(training.step(training.x).cpu())
            second()
        results.append(losses + training.values())
    assert_equal(*results)
    assert (met.counter_value("ReplayedSteps") or 0) > 40
    fills, splits = counts()
    assert 8 <= fills <= 20
    assert 8 <= splits <= 20


def test_a_thread_reads_values_while_steps_run() -> None:
    """Each value that it sees is that of one step."""
    values = [torch.zeros(4, device="xla") for _ in range(40)]

    @torch_xla.compile(replay=True)
    def step() -> None:
        for value in values:
            value.add_(1)

    seen: list[Tensor] = []
    errors: list[BaseException] = []
    is_done = threading.Event()

    def read() -> None:
        try:
            while not is_done.is_set():
                seen.append(values[7].cpu())
                for _ in range(10):
                    memory.buffers()
                    time.sleep(0.0005)  # a step that another thread always reads is recorded, not replayed
        except BaseException as error:
            errors.append(error)

    for _ in range(4):
        step()
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(150):
            step()
    finally:
        is_done.set()
        thread.join()
    assert not errors, errors[0]
    numbers = [each[0].item() for each in seen]
    assert all(torch.equal(each, each[0].expand(4)) for each in seen)
    assert numbers == sorted(numbers)
    assert all(torch.equal(value.cpu(), torch.full((4,), 154.0)) for value in values)


def test_interrupts_while_a_bucket_is_split() -> None:
    """A read that is interrupted at any of its events changes no value, and can be repeated."""
    training, plain = Training(replay=True), Training(replay=False)
    number = 0
    while True:
        for _ in range(6):
            training.step(training.x)
            plain.step(plain.x)
        was_interrupted = interrupts.interrupted_at(number, interrupts.EVENTS, training.weight.detach().cpu)
        assert_equal(training.values(), plain.values())
        if not was_interrupted:
            break
        number += 3
    assert number > 10
    assert counts()[1] > 2 * number // 3


def test_buckets_are_released_with_their_tensors() -> None:
    """The memory of the model is free when the model and its step are gone."""
    gc.collect()
    before = memory.buffers()
    training = Training(replay=True)
    for _ in range(6):
        training.step(training.x)
    assert counts()[0] == 1
    del training
    gc.collect()
    torch_xla.sync(wait=True)
    assert len(memory.buffers()) <= len(before)
    assert counts() == (1, 0)


LARGEST = bucketed_program.MOST_BYTES // 4


@pytest.mark.parametrize(
    ("count", "size", "fills"),
    [(40, 4, 1), (40, LARGEST, 1), (40, LARGEST + 1, 0), (40, 0, 0), (10, 4, 0)],
    ids=["40 small tensors", "largest size", "too large", "empty", "too few"],
)
def test_which_arrays_are_in_buckets(count: int, size: int, fills: int) -> None:
    """The table of ``group_arrays``."""

    def step(values: list[Tensor]) -> None:
        for value in values[:count]:
            value.add_(1)

    values = [torch.zeros(size, device="xla") for _ in range(40)]
    captured = torch_xla.compile(step, replay=True)
    for _ in range(5):
        captured(values)
    assert counts()[0] == 0, "arguments are not in buckets"
    captured = torch_xla.compile(lambda: step(values), replay=True)
    for _ in range(5):
        captured()
    assert counts()[0] == fills
    assert all(torch.equal(value.cpu(), torch.full((size,), 10.0)) for value in values[:10])


def test_each_dtype_has_a_bucket() -> None:
    """Also complex numbers, booleans and 16-bit floats."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64, torch.bool, torch.uint8)
    values = [torch.zeros(3, i % 4 + 1, dtype=dtype, device="xla") for dtype in dtypes for i in range(6)]

    @torch_xla.compile(replay=True)
    def step() -> None:
        for value in values:
            if value.dtype is torch.bool:
                value.logical_not_()
            else:
                value.add_(1)

    for _ in range(7):
        step()
    assert counts() == (len(dtypes), 0)
    assert all(torch.equal(value.cpu(), torch.full_like(value, 7, device="cpu")) for value in values)


def test_without_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would compile a kernel for each array of a bucket: the step passes single arrays."""
    monkeypatch.setattr(bucketed_program.library, "load_library", lambda: None)
    training = Training(replay=True)
    for _ in range(6):
        training.step(training.x)
    assert met.counter_value("ReplayedSteps") == 3
    assert counts() == (0, 0)
