"""Guards of torch_xla.compile(replay=True): each guarded thing changed once gives the right values, and is counted."""

from __future__ import annotations

import argparse
import array
import math
import random
import threading
import types
from collections import ChainMap, UserList, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.debug import recompilation

WIDTH = 4
SCALE = 1.0  # a global that the step reads


def activate(x: torch.Tensor) -> torch.Tensor:
    """A global function that the step calls."""
    return x.tanh()


class Block(nn.Module):
    """A module with a number, a buffer and a dropout layer."""

    bias = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.gain = 1.0
        self.register_buffer("shift", torch.zeros(WIDTH))
        self.extra = [1.0, 2.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(activate(self.linear(x))) * self.gain + self.shift * self.bias + self.extra[0]


class LazyOptions(dict[str, Any]):
    """A dictionary that makes its items when they are read, as libraries do that import on demand."""

    def __init__(self) -> None:
        self.scale = 1.0

    def items(self) -> Any:
        return [("made", object())]

    def __len__(self) -> int:
        return 1


class Window(deque[float]):
    """A deque with an attribute."""

    scale = 1.0


class Pair(tuple[float, ...]):
    """A tuple with attributes."""


@dataclass(slots=True)
class Slots:
    """Values without a ``__dict__``."""

    scale: float
    inner: list[float]


class Holders:
    """What else holds numbers that a step reads: containers, arrays, and records."""

    def __init__(self) -> None:
        self.recent = deque([1.0], maxlen=1)
        self.window = Window([1.0], maxlen=1)
        self.names = {"one"}
        self.pair = Pair([1.0])
        self.pair.scale = 1.0  # type: ignore[attr-defined]
        self.slots = Slots(1.0, [1.0])
        self.table = np.ones(2)
        self.words = array.array("d", [1.0])
        self.bytes = bytearray(b"\x01")
        self.arguments = argparse.Namespace(scale=1.0)
        self.space = types.SimpleNamespace(scale=1.0)
        self.chain = ChainMap({"scale": 1.0})
        self.items = UserList([1.0])
        self.source = {"scale": 1.0}
        self.view = types.MappingProxyType(self.source)

    def product(self) -> float:
        """Read each of them."""
        scale = 1.0 if "one" in self.names else 2.0
        scale *= self.recent[0] * self.window[0] * self.window.scale * self.pair.scale  # type: ignore[attr-defined]
        scale *= self.slots.scale * self.slots.inner[0] * float(self.table[1]) * self.words[0] * self.bytes[0]
        scale *= self.items[0] * self.view["scale"]
        return scale * float(self.arguments.scale * self.space.scale * self.chain["scale"])


class Task:
    """A model, its optimizer, and the step that trains it."""

    def __init__(self, replay: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(Block(), nn.Linear(WIDTH, 1)).to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.options = {"penalty": 0.0}
        self.lazy = LazyOptions()
        self.holders = Holders()
        self.active = ExitStack()
        self.seen: list[Any] = []
        self.step = torch_xla.compile(self._step, replay=replay)
        self.size, self.dtype, self.factor = 3, torch.float32, 1.0

    @property
    def block(self) -> Block:
        found = self.model[0]
        assert isinstance(found, Block)
        return found

    def _step(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss = (self.model(x.float()) * SCALE).square().mean() * factor * self.lazy.scale
            loss = loss * self.holders.product()
            loss = loss + self.options["penalty"] * self.model[1].weight.square().sum()
        loss.backward()
        self.optimizer.step()
        probe = torch.full((2,), 0.5, device="xla") @ torch.ones(2, 2, device="xla")
        return loss + probe.sum().to(loss.dtype) * 0

    def call(self, number: int) -> torch.Tensor:
        x = torch.arange(self.size * WIDTH, dtype=self.dtype).reshape(self.size, WIDTH) / 7 + number
        return self.step(x.to("xla"), self.factor)

    def values(self) -> list[torch.Tensor]:
        tensors = [*self.model.state_dict().values()]
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        return [tensor.detach().float().cpu() for tensor in tensors]


def set_global(name: str, value: Any) -> None:
    """Assign a global of this module."""
    globals()[name] = value


def half_tanh(x: torch.Tensor) -> torch.Tensor:
    """Another activation."""
    return x.tanh() * 0.5


def double_gradient(parameter: torch.Tensor) -> None:
    """A hook."""
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def replace_linear(task: Task) -> None:
    """Another submodule, with a parameter that the optimizer does not have."""
    task.block.linear = nn.Linear(WIDTH, WIDTH, bias=False).to("xla")
    nn.init.constant_(task.block.linear.weight, 0.25)


def load(task: Task) -> None:
    """A checkpoint, from the CPU."""
    with torch.no_grad():
        task.model.load_state_dict({name: value.cpu() * 0.5 for name, value in task.model.state_dict().items()})


#: name -> (change, whether the step is recorded again).
CHANGES: dict[str, tuple[Callable[[Task], Any], bool]] = {
    "nothing": (lambda t: None, False),
    "training flag": (lambda t: t.model.eval(), True),
    "training flag of one module": (lambda t: t.block.drop.eval(), True),
    "requires_grad": (lambda t: t.block.linear.weight.requires_grad_(False), True),
    "a number of a module": (lambda t: setattr(t.block, "gain", 2.0), True),
    "an item of a list of a module": (lambda t: t.block.extra.__setitem__(0, 3.0), True),
    "a number of a class": (lambda t: setattr(Block, "bias", 0.75), True),
    "dropout rate": (lambda t: setattr(t.block.drop, "p", 0.25), True),
    "a submodule": (replace_linear, True),
    "a module that is removed": (lambda t: setattr(t.block, "drop", nn.Identity()), True),
    "a parameter that is replaced": (
        lambda t: setattr(t.block.linear, "weight", nn.Parameter(t.block.linear.weight.detach() * 2)),
        True,
    ),
    "a buffer that is replaced": (lambda t: setattr(t.block, "shift", torch.ones(WIDTH, device="xla")), True),
    "a buffer that is written": (lambda t: t.block.shift.fill_(2.0), False),
    "a parameter that is written": (load, False),
    "a parameter's data": (lambda t: setattr(t.block.linear.bias, "data", torch.ones(WIDTH, device="xla")), False),
    "a forward hook": (lambda t: t.block.register_forward_hook(lambda m, i, o: o * 2), True),
    "a global forward hook": (
        lambda t: t.active.callback(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 1.5).remove),
        True,
    ),
    "a tensor hook": (lambda t: t.block.linear.weight.register_hook(lambda g: g * 3), True),
    "a hook after accumulation": (
        lambda t: t.block.linear.weight.register_post_accumulate_grad_hook(double_gradient),
        True,
    ),
    "a global number": (lambda t: set_global("SCALE", 2.0), True),
    "a global function": (lambda t: set_global("activate", half_tanh), True),
    "an item of a dictionary": (lambda t: t.options.update(penalty=0.5), True),
    "an attribute of a dictionary": (lambda t: setattr(t.lazy, "scale", 0.5), True),
    "a stored item of a dictionary that makes items": (lambda t: t.lazy.update(scale=1.0), True),
    "an item of a full deque": (lambda t: t.holders.recent.append(2.0), True),
    "an item of the user's deque": (lambda t: t.holders.window.append(2.0), True),
    "an attribute of a deque": (lambda t: setattr(t.holders.window, "scale", 2.0), True),
    "an item of a set": (lambda t: (t.holders.names.clear(), t.holders.names.add("two")), True),
    "the same items of a set": (lambda t: (t.holders.names.clear(), t.holders.names.add("one")), False),
    "an attribute of a tuple": (lambda t: setattr(t.holders.pair, "scale", 2.0), True),
    "a slot": (lambda t: setattr(t.holders.slots, "scale", 2.0), True),
    "an item of a slot": (lambda t: t.holders.slots.inner.__setitem__(0, 2.0), True),
    "an object in a slot": (lambda t: setattr(t.holders.slots, "inner", [2.0]), True),
    "an element of a numpy array": (lambda t: t.holders.table.__setitem__(1, 2.0), True),
    "the same elements of a numpy array": (lambda t: t.holders.table.fill(1.0), False),
    "an element of an array": (lambda t: t.holders.words.__setitem__(0, 2.0), True),
    "a byte": (lambda t: t.holders.bytes.__setitem__(0, 2), True),
    "a parsed argument": (lambda t: setattr(t.holders.arguments, "scale", 2.0), True),
    "an attribute of a namespace": (lambda t: setattr(t.holders.space, "scale", 2.0), True),
    "an item of a chain of dictionaries": (lambda t: t.holders.chain.maps[0].update(scale=2.0), True),
    "an item of a user list": (lambda t: t.holders.items.__setitem__(0, 2.0), True),
    "an item behind a read-only view": (lambda t: t.holders.source.update(scale=2.0), True),
    "learning rate": (lambda t: t.optimizer.param_groups[0].update(lr=0.01), True),
    "betas": (lambda t: t.optimizer.param_groups[0].update(betas=(0.5, 0.9)), True),
    "a flag of the optimizer": (lambda t: t.optimizer.param_groups[0].update(amsgrad=False, maximize=True), True),
    "optimizer state": (lambda t: t.optimizer.state.clear(), True),
    "a step count": (
        lambda t: [state["step"].fill_(1.0) for state in t.optimizer.state.values()],
        False,
    ),
    "one step count": (lambda t: next(iter(t.optimizer.state.values()))["step"].fill_(1.0), True),
    "a group of the optimizer": (
        lambda t: t.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, device="xla"))]}),
        True,
    ),
    "gradients that are None": (lambda t: t.optimizer.zero_grad(), True),
    "batch size": (lambda t: setattr(t, "size", 5), True),
    "dtype of an argument": (lambda t: setattr(t, "dtype", torch.float64), True),
    "a float argument": (lambda t: setattr(t, "factor", 0.5), True),
    "the type of an argument": (lambda t: setattr(t, "factor", 2), True),
    "autocast": (
        lambda t: t.active.enter_context(torch.autocast("xla", dtype=torch.bfloat16, cache_enabled=False)),
        True,
    ),
    "no_grad": (lambda t: t.active.enter_context(torch.no_grad()), True),
    "default dtype": (
        lambda t: (torch.set_default_dtype(torch.float64), t.active.callback(torch.set_default_dtype, torch.float32)),
        True,
    ),
    "deterministic algorithms": (
        lambda t: (
            torch.use_deterministic_algorithms(True),
            t.active.callback(torch.use_deterministic_algorithms, False),
        ),
        True,
    ),
    "random seed": (lambda t: torch_xla.manual_seed(7), False),
    "seed of torch": (lambda t: torch.manual_seed(7), False),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The globals of this module and the random seed as they were."""
    met.clear_counters()
    torch_xla.manual_seed(1)
    yield
    set_global("SCALE", 1.0)
    set_global("activate", original_activate)
    Block.bias = 0.5


original_activate = activate


def run(change: Callable[[Task], Any], replay: bool) -> tuple[list[torch.Tensor], int, int]:
    """Train, change one thing, and train on; return all values, and what the change has made (misses, replays)."""
    task = Task(replay)
    torch_xla.manual_seed(1)
    losses = [task.call(i) for i in range(6)]
    missed, replayed = (met.counter_value(name) or 0 for name in ("ReplayMisses", "ReplayedSteps"))
    with task.active:
        change(task)
        losses += [task.call(6)]
        missed = (met.counter_value("ReplayMisses") or 0) - missed
        replayed = (met.counter_value("ReplayedSteps") or 0) - replayed
        losses += [task.call(i) for i in range(7, 11)]
    return [*(loss.detach().float().cpu() for loss in losses), *task.values()], missed, replayed


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_gives_the_right_values(name: str) -> None:
    """The step is replayed with the new value, or recorded again; its values are those of a step without replay."""
    change, records = CHANGES[name]
    found, missed, replayed = run(change, True)
    assert (missed, replayed) == ((1, 0) if records else (0, 1))
    if records:
        assert "recorded _step again" in recompilation.report()
    restore = (set_global("SCALE", 1.0), set_global("activate", original_activate), setattr(Block, "bias", 0.5))
    assert restore is not None
    expected, *_ = run(change, False)
    assert [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)] == []


class Counting:
    """A trainer that counts its steps."""

    def __init__(self) -> None:
        self.weight, self.step_count = torch.zeros(2, device="xla"), 0
        self.step = torch_xla.compile(self._step, replay=True)

    def _step(self, x: torch.Tensor) -> None:
        self.weight.add_(x)


def test_a_change_before_each_call_warns() -> None:
    """Recordings that agree, and are never replayed, cost more than a step without replay: the 16th is the last."""
    trainer, one = Counting(), torch.ones(2, device="xla")

    def call() -> None:
        trainer.step_count += 1
        trainer.step(one)

    for _ in range(15):
        call()
    with pytest.warns(UserWarning, match=r"(?s)_step cannot be replayed.*step_count\s+has\s+changed\s+before"):
        call()
    recorded = met.counter_value("ReplayRecordings")
    call()
    assert trainer.weight.tolist() == [17, 17]
    assert met.counter_value("ReplayRecordings") == recorded == 16
    assert met.counter_value("ReplayRejections") == 1


def test_another_thread_records() -> None:
    """A replay belongs to the thread that recorded it."""
    weight = torch.zeros(2, device="xla")
    step = torch_xla.compile(lambda x: weight.add_(x), replay=True)
    one = torch.ones(2, device="xla")
    for _ in range(4):
        step(one)
    thread = threading.Thread(target=step, args=(one,))
    thread.start()
    thread.join()
    step(one)
    assert weight.tolist() == [6, 6]
    assert met.counter_value("ReplayMisses") == 1


class Holder:
    """Something that steps write to."""

    count = 0
    kept: Any = None


HOLDER = Holder()
HOST = torch.zeros(3)
HIDDEN = iter([])
ONES = iter([1.0] * 50)
RANDOM, NUMPY, TORCH = random.Random(0), np.random.default_rng(0), torch.Generator()
DRAW = random.Random(0).random
GENERATED = (1.0 for _ in range(50))


def math_of_number(x: torch.Tensor, number: float) -> torch.Tensor:
    """A number that no expression describes."""
    return x * np.sqrt(np.float64(float.__mul__(number, 1.0)))


def count_up(x: torch.Tensor, _: float) -> torch.Tensor:
    """A side effect in Python."""
    HOLDER.count += 1
    return x + 1


def keep(x: torch.Tensor, _: float) -> torch.Tensor:
    """A tensor that lives on."""
    HOLDER.kept = x * 2
    return x + 1


def close(x: torch.Tensor, _: float) -> torch.Tensor:
    """A step closure that holds a tensor of the step."""
    total = x.sum()
    xm.add_step_closure(lambda: print(total, end=""))
    return x + 1


#: name -> (step, words of the warning).
REJECTED: dict[str, tuple[Callable[[torch.Tensor, float], Any], str]] = {
    "a value that is read": (lambda x, _: x * x.sum().item(), "reads a value.*test_replay_guards.py"),
    "a branch": (lambda x, _: x + 1 if x.sum() > -9 else x, "reads a value"),
    "a step that ends inside": (lambda x, _: (x + 1, torch_xla.sync())[0], "ends a step"),
    "a side effect": (count_up, "changes .*count"),
    "a tensor that is kept": (keep, r"changes .*kept|keeps a new tensor"),
    "a tensor from the CPU": (lambda x, n: x + torch.full((3,), 2 * float.__mul__(n, 1.0)).to("xla"), "from the CPU"),
    "a random number of Python": (lambda x, _: x + random.random(), "random numbers of random"),
    "a random number of numpy": (lambda x, _: x + float(np.random.random_sample()), "random numbers of numpy"),  # noqa: NPY002
    "a generator of Python": (lambda x, _: x + (RANDOM.random() > 2), "random numbers of the generator RANDOM"),
    "a method of a generator": (lambda x, _: x + (DRAW() > 2), "random numbers of the generator DRAW"),
    "a generator of numpy": (lambda x, _: x + (NUMPY.random() > 2), "random numbers of the generator NUMPY"),
    "a generator of torch": (
        lambda x, _: x + (torch.rand((), generator=TORCH).item() > 2),
        "random numbers of the generator TORCH",
    ),
    "a random number of the CPU": (lambda x, _: x + torch.rand(()).item(), "random numbers of torch on the CPU"),
    "a number without an expression": (math_of_number, "number changes from .*test_replay_guards.py"),
    "a number that is rounded down": (lambda x, n: x * math.floor(n / 64), "converts a number.*test_replay_guards.py"),
    "a number that numpy reads": (lambda x, n: x * float(np.asarray(n) // 64), "converts a number"),
    "a number that becomes a text": (lambda x, n: x * len(f"{n:.0f}"), "converts a number"),
    "a step closure of a tensor": (close, "step closure|keeps a new tensor"),
    "a tensor of the CPU as a result": (lambda x, _: (x + 1, torch.ones(2)), "returns a tensor on cpu"),
    "an object as a result": (lambda x, _: (x + 1, Holder()), "object of Holder"),
    "a tensor on the CPU that is written": (lambda x, _: (x + 1, HOST.add_(1))[0], "HOST"),
    "an iterator": (lambda x, _: x + next(ONES), "reads ONES, an iterator"),
    "a loop over a generator": (lambda x, _: next(x + one for one in GENERATED), "reads GENERATED, an iterator"),
    "a graph that differs": (lambda x, n: x[: int(float.__mul__(n, 1.0)) % 17 + 1] + 1, "another graph|integer"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_cannot_be_replayed_is_rejected_with_a_reason(name: str) -> None:
    """It computes as without replay, and warns once."""
    function, words = REJECTED[name]
    step = torch_xla.compile(function, replay=True)
    size = (20,) if "differs" in name else (3,)

    def call(i: int) -> Any:
        return step(torch.full(size, float(i), device="xla"), i + 0.5)

    with pytest.warns(UserWarning, match=f"(?s)cannot be replayed.*{words}.*explain replay"):
        results = [call(i) for i in range(20)]
    assert len(results) == 20
    assert met.counter_value("ReplayRejections") == 1
    assert not met.counter_value("ReplayedSteps")


def test_results_are_those_of_the_function_while_it_is_rejected() -> None:
    """Before and after the rejection."""
    step = torch_xla.compile(lambda x: x * x.sum().item(), replay=True)
    with pytest.warns(UserWarning, match="cannot be replayed"):
        found = [step(torch.full((2,), float(i), device="xla")).tolist() for i in range(6)]
    assert found == [[2.0 * i * i] * 2 for i in range(6)]
