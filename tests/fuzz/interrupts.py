"""Interrupts at every place of a step: nothing may be lost, and nothing may happen twice.

    python -m tests.fuzz.interrupts                  an exception after every call of a step, one run for each
    python -m tests.fuzz.interrupts --seconds 600    and SIGINT at random moments, for so long

A step that was interrupted is ended by another ``torch_xla.sync()``. Then weights and the optimizer's state must be,
bit for bit, those of a run that no caller disturbed. A sample of the captured steps is in
test_replays.py.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental import eager

#: What sys.setprofile tells of: Python functions when they begin and end, and C functions when they end. Not when these
#: begin: Python looks for signals after a call, not before (a ``with`` could not give its lock back, for one).
EVENTS = ("call", "return", "c_return")


class Interrupt(KeyboardInterrupt):
    """Stands for a Ctrl-C."""


class Training:
    """A model whose steps are all alike from the third on, and its values as numbers to compare."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.25), torch.nn.Linear(3, 1)).to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.x = torch.arange(8.0).reshape(2, 4).to("xla")
        self.loss = torch.zeros((), device="xla")

    def record(self) -> None:
        """One step, up to its barrier."""
        self.optimizer.zero_grad()
        self.loss = self.model(self.x).square().mean()
        self.loss.backward()
        self.optimizer.step()

    def values(self) -> list[list[float]]:
        """Weights and the optimizer's state."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [value.detach().flatten().tolist() for value in [*self.model.parameters(), *states, self.loss]]


def undisturbed(steps: int) -> list[list[float]]:
    """The values after so many steps that no caller disturbs."""
    training = Training()
    for _ in range(steps):
        training.record()
        torch_xla.sync()
    return training.values()


def interrupted_at(number: int, events: tuple[str, ...], run: Callable[[], Any]) -> bool:
    """Runs something, with an Interrupt at event ``number``, counted from 0. False if it had fewer events.

    AssertionError where somebody has swallowed it.
    """
    seen = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        if event in events and frame.f_code.co_filename != __file__:
            seen += 1
            if seen == number + 1:
                sys.setprofile(None)
                # Not the value, which may be a tensor: to print it would read it.
                what = getattr(arg, "__qualname__", type(arg).__name__)
                raise Interrupt(f"event {number}: {event} {frame.f_code.co_qualname} {what}")

    sys.setprofile(profile)
    try:
        run()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    assert seen <= number, f"the interrupt at event {number} was swallowed"
    return False


def finish(run: Callable[[], Any]) -> None:
    """Runs something until nothing interrupts it."""
    while True:
        try:
            return run()
        except Interrupt:
            continue


def at_every_event(events: tuple[str, ...] = EVENTS, stride: int = 1, show: bool = False) -> int:
    """Interrupts one step of a training at each ``stride``-th of its events. Returns how many; AssertionError."""
    expected = {}
    progress = tqdm(desc="interrupted at", unit=" events", disable=not show)
    number = done = 0
    while True:
        training = Training()
        for _ in range(3):
            training.record()
            torch_xla.sync()
        training.record()
        was_interrupted = interrupted_at(number, events, torch_xla.sync)
        torch_xla.sync()
        for steps in (4, 5):
            if steps not in expected:
                expected[steps] = undisturbed(steps)
            assert training.values() == expected[steps], f"another result after an interrupt at event {number}"
            training.record()
            torch_xla.sync()
        if not was_interrupted:
            return done
        number, done = number + stride, done + 1
        progress.update()


class CapturedTraining(Training):
    """The same, as a step that torch_xla.compile(replay=True) launches from the fifth on."""

    def __init__(self) -> None:
        super().__init__()
        self.step = torch_xla.compile(self.record_with_loss, replay=True)
        for _ in range(4):
            self.step()  # its loss must not become an attribute, which the step could read

    def record_with_loss(self) -> torch.Tensor:
        """One step."""
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def in_captured_steps(
    events: tuple[str, ...] = EVENTS, stride: int = 1, show: bool = False, read_before: bool = False
) -> int:
    """Interrupt a replayed step at each ``stride``-th of its events: it has run as a whole, or not at all.

    The next steps continue from there. With ``read_before``, the values are read before the step, which then has to
    move them to buckets again, if the program has any (compilation/bucketed_program.py). Returns how many;
    AssertionError.
    """
    expected = {steps: undisturbed(steps)[:-1] for steps in (4, 5, 6, 7)}
    progress = tqdm(desc="interrupted at", unit=" events", disable=not show)
    number = done = 0
    while True:
        training = CapturedTraining()
        if read_before:
            training.values()
        replays = metrics.counter_value("ReplayedSteps") or 0
        was_interrupted = interrupted_at(number, events, training.step)
        torch_xla.sync()
        ran = training.values()[:-1] == expected[5]
        assert ran or training.values()[:-1] == expected[4], f"half of a step after an interrupt at event {number}"
        for steps in (5 + ran, 6 + ran):
            training.step()
            assert training.values()[:-1] == expected[steps], f"another result after an interrupt at event {number}"
        assert (metrics.counter_value("ReplayedSteps") or 0) >= replays + 2, "the steps were not replayed"
        if not was_interrupted:
            return done
        number, done = number + stride, done + 1
        progress.update()


def at_random_moments(seconds: float, seed: int = 0, show: bool = False) -> int:
    """SIGINT at random moments of steps and reads, for so many seconds. Returns how many; AssertionError."""
    chance, inside, interrupts = random.Random(seed), False, 0

    def handler(number: int, frame: Any) -> None:
        nonlocal interrupts
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3))
        if inside:
            interrupts += 1
            raise Interrupt

    def disturbed(run: Callable[[], Any]) -> Any:
        nonlocal inside
        while True:
            try:
                inside = True
                result = run()
                inside = False
                return result
            except Interrupt:
                inside = False

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # jax has a callback there, and what is raised in one goes nowhere
    end = time.monotonic() + seconds
    progress = tqdm(desc="interrupts", disable=not show)
    try:
        while time.monotonic() < end:
            training, steps = Training(), 20
            for _ in range(steps):
                training.record()
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3))
                disturbed(torch_xla.sync)
                disturbed(training.loss.item)
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert training.values() == undisturbed(steps), f"another result after {interrupts} interrupts"
            progress.update(interrupts - progress.n)
            gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    return interrupts


def in_eager_mode(stride: int = 1) -> int:
    """Interrupt an eager in-place operation at each of its events: it must not be applied twice."""
    number = done = 0
    with eager.eager_mode_context(True):
        while True:
            x = torch.zeros(2, device="xla")
            was_interrupted = interrupted_at(number, EVENTS, functools.partial(x.add_, 1))
            if was_interrupted:
                x.add_(1)
            assert x.tolist() == [1, 1], f"event {number} of add_ in eager mode"
            if not was_interrupted:
                return done
            number, done = number + stride, done + 1


def in_new_signatures(stride: int = 1) -> int:
    """Interrupt calls with new operand shapes, whose output specs torch's meta functions compute, partly in Python.

    Retried, they return what the CPU returns, and raise the errors that the CPU raises.
    """
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "in place": lambda x: x.cumsum_(0),
        "raises for its shapes": lambda x: x.masked_fill(torch.ones(3, dtype=torch.bool, device=x.device), 1),
        "raises for its out": lambda x: torch.softmax(x, 0, out=torch.empty(0, dtype=torch.int64, device=x.device)),
    }
    done = 0
    for name, call in calls.items():
        number = 0
        while True:
            size = 1009 + done  # another one each time, that no test has
            x = torch.ones(size, device="xla")
            if not interrupted_at(number, ("c_return",), functools.partial(_refused, call, x)):
                break
            got, expected = _outcome(call, torch.ones(size, device="xla")), _outcome(call, torch.ones(size))
            assert got == expected, f"event {number} of a call {name}: {got}, and {expected} on the CPU"
            number, done = number + stride, done + 1
    return done


def _refused(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """What it gives, or the type of the error."""
    try:
        return call(x)
    except RuntimeError as error:
        return type(error)


def _outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    found = _refused(call, x)
    return found.tolist() if isinstance(found, torch.Tensor) else found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="also SIGINT at random moments, for so long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # As in the tests. By default the first training is interpreted, whose last bits may differ from those of a program.
    os.environ.setdefault("TORCH_XLA_COMPILE_POLICY", "compile")
    for events in (("c_return",), EVENTS):
        print(f"{at_every_event(events, show=True)} interrupts at {'/'.join(events)}: nothing lost")
        print(f"{in_captured_steps(events, show=True)} at {'/'.join(events)} of captured steps: nothing lost")
    print(f"{in_new_signatures()} interrupts of calls seen for the first time: nothing swallowed")
    print(f"{in_eager_mode()} interrupts of an operation in eager mode: nothing lost, nothing twice")
    if options.seconds:
        print(f"{at_random_moments(options.seconds, options.seed, show=True)} at random moments: nothing lost")


if __name__ == "__main__":
    main()
