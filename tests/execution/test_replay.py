"""torch_xla.compile(replay=True): replayed steps compute the bits of recorded ones, and continue all state."""

from __future__ import annotations

import copy
import itertools
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

COUNTERS = ("ReplayedSteps", "ReplayRecordings", "ReplayMisses", "ReplayRejections")


def counts() -> tuple[int, ...]:
    """Replays, recordings, misses and rejections since the last clear."""
    return tuple(met.counter_value(name) or 0 for name in COUNTERS)


@pytest.fixture(autouse=True)
def cleared() -> None:
    """No counts of other tests."""
    met.clear_counters()


def make_model(dropout: bool = False) -> nn.Module:
    """A small classifier."""
    torch.manual_seed(0)
    drop = [nn.Dropout(0.3)] if dropout else []
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), *drop, nn.Linear(8, 3)).to("xla")


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """A step that trains the model on a batch and returns the loss."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def batches(count: int, size: int = 5) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches on the device, the same in each call."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(size, 6, generator=generator)
        yield x.to("xla"), torch.randint(3, (size,), generator=generator).to("xla")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "adam for each": partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "adamw fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "adamw capturable": partial(torch.optim.AdamW, lr=1e-2, capturable=True),
    "radam": partial(torch.optim.RAdam, lr=1e-2),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def train(
    optimizer: Callable[..., torch.optim.Optimizer], replay: bool, steps: int = 12, dropout: bool = False,
    schedule: bool = False, clip: bool = False,
) -> list[torch.Tensor]:  # fmt: skip
    """Train; return losses, gradients, and the state of the model and the optimizer."""
    model = make_model(dropout)
    made = optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(made, 20) if schedule else None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        made.step()
        return loss.detach()

    step = torch_xla.compile(step, replay=replay)
    torch_xla.manual_seed(3)
    losses = []
    for x, y in batches(steps):
        losses.append(step(x, y))
        if scheduler is not None:
            scheduler.step()
    states = [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    values = [*losses, *(p.grad for p in model.parameters()), *model.state_dict().values(), *states]
    return [*(value.detach().cpu() for value in values), torch.rand(3, device="xla").cpu()]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Bit by bit."""
    assert len(found) == len(expected)
    assert [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)] == []


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [False, True])
def test_training_is_equal_bit_by_bit(name: str, dropout: bool) -> None:
    """Losses, gradients, parameters, optimizer state and random numbers, with a schedule and clipping."""
    options: dict[str, Any] = {"dropout": dropout, "schedule": True, "clip": dropout}
    found = train(OPTIMIZERS[name], True, **options)
    replays, recordings, _, rejections = counts()
    assert (replays + recordings, rejections) == (12, 0)
    assert recordings <= (8 if name == "radam" else 4)
    assert_equal(found, train(OPTIMIZERS[name], False, **options))


def test_counters() -> None:
    """SGD without momentum has no state to create: two recordings, no miss."""
    train(partial(torch.optim.SGD, lr=0.1), True)
    assert counts() == (10, 2, 0, 0)


def test_gradient_accumulation() -> None:
    """Two captured functions, over the gradients of one model."""

    def run(replay: bool) -> list[torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def accumulate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(x), y) / 4
            loss.backward()
            return loss

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        accumulate = torch_xla.compile(accumulate, replay=replay)
        update = torch_xla.compile(update, replay=replay)
        losses = []
        for i, (x, y) in enumerate(batches(24)):
            losses.append(accumulate(x, y))
            if i % 4 == 3:
                update()
        return [value.detach().cpu() for value in [*losses, *model.state_dict().values()]]

    found = run(True)
    assert counts()[0] >= 18
    assert_equal(found, run(False))


def test_state_that_is_loaded_between_calls_is_read() -> None:
    """load_state_dict() of model and optimizer, and an average of the weights, between replays."""

    def run(replay: bool) -> list[torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        average = copy.deepcopy(model)

        step = torch_xla.compile(make_step(model, optimizer), replay=replay)
        losses, saved = [], None
        for i, (x, y) in enumerate(batches(14)):
            losses.append(step(x, y))
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(new, 0.1)
            if i == 5:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            if i == 8:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
        values = [*losses, *model.state_dict().values(), *average.state_dict().values()]
        return [value.detach().cpu() for value in values]

    found = run(True)
    assert counts()[0] >= 7
    assert_equal(found, run(False))


def test_a_held_reference_keeps_its_value() -> None:
    """A state_dict() or gradient that is held across a replay has the values of before it."""
    weight = nn.Parameter(torch.ones(3, device="xla"))

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad)

    one = torch.ones(3, device="xla")
    for _ in range(4):
        step(one)
    gradient, copied = weight.grad, weight.detach().clone()
    torch_xla.sync()
    step(one * 2)
    assert (gradient.tolist(), copied.tolist(), weight.tolist()) == ([1] * 3, [-3] * 3, [-5] * 3)
    assert weight.grad.tolist() == [2] * 3
    alias = weight.detach()
    step(one)
    assert alias.tolist() == weight.tolist() == [-6] * 3


def test_a_held_gradient_survives_the_step_that_drops_it() -> None:
    """The program would overwrite a gradient that the step sets to None; one that is held is kept."""
    weight = nn.Parameter(torch.zeros(3, device="xla"))

    @torch_xla.compile(replay=True)
    def update() -> None:
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None

    held = []
    for i in range(8):
        weight.grad = torch.full((3,), float(i), device="xla")
        if i > 4:
            held.append(weight.grad)
        update()
    assert weight.tolist() == [-28.0] * 3
    assert [gradient.tolist() for gradient in held] == [[5.0] * 3, [6.0] * 3, [7.0] * 3]
    assert counts()[0] >= 2


#: What a program may hold of a parameter across replays.
HELD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gradient": lambda weight: weight.grad,
    "row of the gradient": lambda weight: weight.grad[0],
    "detached gradient": lambda weight: weight.grad.detach(),
    "copy of the gradient": lambda weight: weight.grad.clone(),
    "row of the parameter": lambda weight: weight.detach()[0],
    "transposed parameter": lambda weight: weight.detach().t(),
    "copy of the parameter": lambda weight: weight.detach().clone(),
}


@pytest.mark.parametrize("name", HELD)
def test_held_tensors_have_the_values_of_eager(name: str) -> None:
    """A step that overwrites the arrays of its parameters sees who holds them."""

    def run(device: str) -> list[torch.Tensor]:
        weight = nn.Parameter(torch.arange(6.0, device=device).reshape(2, 3))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            nn.functional.linear(x, weight).square().sum().backward()
            optimizer.step()

        step = torch_xla.compile(step, replay=True) if device == "xla" else step
        held = []
        for i in range(12):
            step(torch.full((1, 3), 0.1 * i, device=device))
            if i in (6, 9):
                held.append(HELD[name](weight))
        assert not hasattr(weight.grad, "tag")
        weight.grad.tag = True
        step(torch.ones(1, 3, device=device))
        assert not hasattr(weight.grad, "tag"), "each step makes another gradient"
        return [tensor.cpu() for tensor in [*held, weight.detach(), weight.grad]]

    found = run("xla")
    assert counts()[0] >= 3
    for here, expected in zip(found, run("cpu"), strict=True):
        torch.testing.assert_close(here, expected)


def test_a_replay_reuses_the_values_of_parameters() -> None:
    """Parameters that the step views, and states, take the new arrays; gradients and the loss are other values."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    step = torch_xla.compile(make_step(model, optimizer), replay=True)
    data = list(batches(12))
    for x, y in data[:8]:
        step(x, y)
    before = met.counter_value("CreateDataHandles") or 0
    for x, y in data[8:]:
        step(x, y)
    made = 1 + len(list(model.parameters()))
    assert met.counter_value("CreateDataHandles") - before == 4 * made


def test_a_written_tensor_of_another_shape_is_recorded() -> None:
    """A tensor that the step only writes to has no value to compare."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3, device="xla"))

    holder = Holder()
    step = torch_xla.compile(lambda x: holder.last.copy_(x + 1).sum(), replay=True)
    for _ in range(4):
        step(torch.ones((), device="xla"))
    holder.last.data = torch.zeros(5, device="xla")
    assert step(torch.ones((), device="xla")).item() == 10.0
    assert holder.last.tolist() == [2.0] * 5


def test_two_shapes_and_float_arguments() -> None:
    """Each batch size is a variant; a float argument is an input once it has differed."""
    weight = torch.full((4,), 2.0, device="xla")
    step = torch_xla.compile(lambda x, scale: (x * weight).sum() * scale, replay=True)
    sizes = itertools.cycle((2, 2, 3, 3))
    for i, size in zip(range(24), sizes, strict=False):
        assert step(torch.ones(size, 4, device="xla"), 0.5 * i).item() == size * 8 * 0.5 * i
    assert counts()[0] >= 18


def test_views_are_arguments() -> None:
    """A slice of a data set is copied before a replay; a write to it reaches the data set."""
    data = torch.arange(24.0, device="xla").reshape(8, 3)
    total = torch_xla.compile(lambda x: x.sum(), replay=True)
    assert [total(data[i : i + 2]).item() for i in range(7)] == [15.0 + 18 * i for i in range(7)]
    assert counts()[0] >= 4
    write = torch_xla.compile(lambda x: x.zero_(), replay=True)
    with pytest.warns(UserWarning, match="an argument that is a view"):
        deque(map(write, data[:5]))
    assert data.sum(1).tolist() == [0] * 5 + [48, 57, 66]


def test_arguments_are_updated_in_place() -> None:
    """As the cache of a decoder."""
    cache, step = torch.zeros(3, device="xla"), torch_xla.compile(lambda cache, x: cache.add_(x), replay=True)
    for i in range(6):
        assert step(cache, torch.full((3,), 1.0, device="xla")) is cache
        assert cache.tolist() == [i + 1.0] * 3
    assert counts()[0] == 4


def test_decorated_functions() -> None:
    """What a decorator of a library wraps is reached."""
    state = [torch.zeros(2, device="xla")]

    @torch_xla.compile(replay=True)
    @torch.no_grad()
    def step(x: torch.Tensor) -> torch.Tensor:
        state[0].add_(x)
        return state[0].sum()

    found = [step(torch.ones(2, device="xla")).item() for _ in range(5)]
    state[0] = torch.zeros(2, device="xla")
    assert [*found, step(torch.ones(2, device="xla")).item()] == [2, 4, 6, 8, 10, 2]
    assert counts() == (3, 3, 1, 0)


def test_closures_added_between_calls_run() -> None:
    """A closure that is queued before a replay runs after it."""
    seen: list[float] = []
    step = torch_xla.compile(lambda x: x + 1, replay=True)
    for i in range(6):
        y = step(torch.full((1,), float(i), device="xla"))
        xm.add_step_closure(lambda value: seen.append(value.item()), args=(y,))
    torch_xla.sync()
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("run_async", [False, True])
def test_closures_added_inside_run(run_async: bool) -> None:
    """A closure that the step adds runs after each replay, with the values of that step."""
    seen: list[tuple[float, float, str]] = []
    weight = torch.zeros(2, device="xla")

    def report(loss: torch.Tensor, total: torch.Tensor, name: str) -> None:
        seen.append((loss.item(), sum(total.tolist()), name))

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        weight.add_(x)
        xm.add_step_closure(report, args=(x.sum(), weight, "a"), run_async=run_async)
        return weight.sum()

    for i in range(6):
        assert step(torch.full((2,), float(i), device="xla")).item() == i * (i + 1)
    torch_xla.sync(wait=True)
    assert seen == [(2.0 * i, float(i * (i + 1)), "a") for i in range(6)]
    assert counts() == (4, 2, 0, 0)


@pytest.mark.parametrize("run_async", [False, True])
def test_closures_defined_inside_change_what_only_they_use(run_async: bool) -> None:
    """A list that only the closure appends to is no guard; one that the step reads itself is."""
    seen: list[float] = []
    weight = torch.zeros(2, device="xla")

    def step(x: torch.Tensor) -> None:
        weight.add_(x)
        xm.add_step_closure(lambda total: seen.append(total.item()), args=(weight.sum(),), run_async=run_async)

    def step_that_reads(x: torch.Tensor) -> None:
        step(x if len(seen) < 100 else -x)

    one = torch.ones(2, device="xla")
    for function, replays in ((step, 4), (step_that_reads, 0)):
        met.clear_counters()
        captured = torch_xla.compile(function, replay=True)
        for _ in range(6):
            captured(one)
            torch_xla.sync(wait=True)
        assert counts()[0] == replays
    assert seen == [2.0 * (i + 1) for i in range(12)]


def test_a_closure_in_the_background_does_not_disturb_a_recording() -> None:
    """It may change objects of the step and draw random numbers: the next recording waits for it."""
    seen: list[int] = []
    weight = torch.zeros(2, device="xla")
    is_started, may_end = threading.Event(), threading.Event()

    def report(i: int) -> None:
        is_started.set()
        may_end.wait()
        random.random()
        seen.append(i)

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        while not seen:  # without the wait, the closure ends here
            may_end.set()
            time.sleep(0.001)
        return weight + x

    xm.add_step_closure(report, args=(1,), run_async=True)
    torch_xla.sync()
    is_started.wait()
    threading.Timer(0.2, may_end.set).start()
    one = torch.ones(2, device="xla")
    for _ in range(3):
        step(one)
    assert (seen, counts()) == ([1], (1, 2, 0, 0))


@pytest.mark.parametrize("move", [lambda x: x.to("xla"), lambda x: x.to("xla", torch.float16).float()])
def test_batches_on_the_cpu(move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The step moves its batch itself: each call uploads the current values."""
    model = make_model()

    @torch_xla.compile(replay=True)
    def evaluate(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        assert batch["x"].shape == (5, 6)
        return model(move(batch["x"])).sum(1) + batch["y"].to(device="xla", non_blocking=True)

    model.eval()
    x, y = torch.ones(5, 6), torch.arange(5)
    for i in range(8):
        x += i
        expected = model(move(x)).sum(1) + y.to("xla")
        assert torch.equal(evaluate({"x": x, "y": y}).cpu(), expected.detach().cpu())
    assert counts() == (6, 2, 0, 0)
    assert evaluate({"x": x.to("xla"), "y": y.to("xla")}).shape == (5,)
    assert counts() == (6, 3, 1, 0)


def test_values_that_are_used_on_the_cpu_are_not_replayed() -> None:
    """The warning names the line."""
    step = torch_xla.compile(lambda x: (x * 2).to("xla") + 1, replay=True)
    with pytest.warns(UserWarning, match="(?s)a tensor on the CPU in mul.*test_replay.py"):
        found = [step(torch.full((1,), float(i))).item() for i in range(6)]
    assert found == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


def test_an_exception_changes_nothing() -> None:
    """A step that raises is not recorded; the next calls record and replay."""
    weight = torch.zeros(2, device="xla")
    fails = False

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> None:
        if fails:
            raise ValueError("stop")
        weight.add_(x)

    one = torch.ones(2, device="xla")
    for _ in range(4):
        step(one)
    fails = True
    with pytest.raises(ValueError, match="stop"):
        step(one)
    fails = False
    step(one)
    assert weight.tolist() == [5, 5]


def test_arguments_and_results_are_released() -> None:
    """Neither recordings nor replays retain the tensors of a call."""
    step = torch_xla.compile(lambda x: x * 2, replay=True)
    alive = []
    for _ in range(6):
        x = torch.ones(3, device="xla")
        alive += [weakref.ref(x), weakref.ref(step(x))]
    del x
    assert counts()[0] == 4
    assert [reference() for reference in alive] == [None] * 12


def test_methods() -> None:
    """A decorated method is replayed for each object."""

    class Trainer:
        def __init__(self, scale: float) -> None:
            self.scale, self.total = scale, torch.zeros(2, device="xla")

        @torch_xla.compile(replay=True)
        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x * self.scale
            return self.total.sum()

    trainers = [Trainer(1.0), Trainer(2.0)]
    for i in range(6):
        for trainer in trainers:
            assert trainer.step(torch.ones(2, device="xla")).item() == 2 * trainer.scale * (i + 1)
    assert counts()[0] >= 6
