"""Who trains what: the jobs of the benchmarks, in torch and in jax, and contestants in separate processes."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks import jax_models, jax_resnet, models

WARM_UP = 4  # steps after the first until nothing compiles any more
LOOP = 10  # steps of a loop, of which Python may be ahead
TURN = 0.3  # seconds of steps in a row or of loops, at least: before, threads are where the last turn left them


@dataclass(frozen=True)
class Job:
    """A model with its data and optimizer; the same in jax."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    optimizer: Callable[..., Optimizer]
    in_jax: Callable[[], tuple[jax_models.State, jax_models.Step]]


MOMENTUM = partial(SGD, lr=0.05, momentum=0.9)
JOBS = [
    Job("MLP-50, AdamW", models.MLP, models.vectors, AdamW, jax_models.mlp),
    Job("LeNet, SGD", models.LeNet, partial(models.images, 64, 1, 28), MOMENTUM, jax_models.lenet),
    Job("ResNet-18, SGD", models.ResNet, partial(models.images, 16, 3, 32), MOMENTUM, jax_resnet.resnet),
    Job("ViT-6L, AdamW", models.ViT, partial(models.images, 8, 3, 32), AdamW, jax_models.vit),
    Job("GPT-6L, AdamW", models.GPT, models.text, AdamW, jax_models.gpt),
]


class Contestant(Protocol):
    """Something that trains one step at a time."""

    def step(self) -> None:
        """Issues one step; the device may still be at work when it returns."""

    def wait(self) -> None:
        """Waits until the device is done."""


class Torch:
    """A job in torch, on any device."""

    def __init__(self, job: Job, device: torch.device, inductor: bool = False, replay: bool = False) -> None:
        torch.manual_seed(0)
        self.lazy, self.on_cuda = device.type == "xla", device.type == "cuda"
        self.model = job.model()
        self.loss = lambda inputs, targets: models.loss(self.model(inputs), targets)
        if inductor:
            self.loss = torch.compile(self.loss)
        self.initial = self.parameters()
        self.model.to(device)
        self.inputs, self.targets = (tensor.to(device) for tensor in job.batch())
        self.optimizer = job.optimizer(self.model.parameters())
        self.replayed: Callable[[Tensor, Tensor], None] | None = None
        if replay:
            import torch_xla

            self.replayed = torch_xla.compile(self.train, replay=True)
        self.wait()

    def train(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(inputs, targets).backward()
        self.optimizer.step()

    def step(self) -> None:
        if self.replayed is not None:
            self.replayed(self.inputs, self.targets)
            return
        self.train(self.inputs, self.targets)
        if self.lazy:
            import torch_xla

            torch_xla.sync()

    def parameters(self) -> Tensor:
        """All parameters as they are now, in one vector on the CPU."""
        return torch.cat([parameter.detach().cpu().flatten() for parameter in self.model.parameters()])

    def wait(self) -> None:
        if self.lazy:
            import torch_xla.core.xla_model as xm

            xm.wait_device_ops()
        elif self.on_cuda:
            torch.cuda.synchronize()


class Jax:
    """A job in hand-written jax, on jax's default device."""

    def __init__(self, job: Job) -> None:
        self.state, self.compiled = job.in_jax()
        # Token ids and labels are 64-bit in torch and 32-bit here, as anyone would write it.
        self.inputs, self.targets = (jnp.asarray(tensor.numpy()) for tensor in job.batch())

    def step(self) -> None:
        self.state, self.loss = self.compiled(self.state, self.inputs, self.targets)

    def wait(self) -> None:
        jax.block_until_ready(self.state)


def time_step(contestant: Contestant) -> tuple[float, float]:
    """Return the seconds until a step returns, and until the device is done."""
    start = time.perf_counter()
    contestant.step()
    host = time.perf_counter()
    contestant.wait()
    return host - start, time.perf_counter() - start


def time_loop(contestant: Contestant, steps: int) -> float:
    """Return the seconds of a step in a loop that waits for the device at its end."""
    start = time.perf_counter()
    for _ in range(steps):
        contestant.step()
    contestant.wait()
    return (time.perf_counter() - start) / steps


class Apart:
    """A contestant in a separate process, as its users have it: threads of others would take its cores, and OpenMP
    lets threads sleep sooner in a process that has several teams of them."""

    def __init__(self, job: Job, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, job.name, kind))
        self._process.start()
        there.close()

    def ask(self, what: str) -> Any:
        """What that method of _Server returns. Raises RuntimeError with the other process's traceback."""
        self._connection.send(what)
        try:
            fine, answer = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"a contestant's process ended with exit code {self._process.exitcode}") from None
        if not fine:
            raise RuntimeError(f"in a contestant's process:\n{answer}")
        return answer

    def end(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(timeout=10)
        self._process.kill()


class _Server:
    """What a contestant's process does. Times are in seconds."""

    def __init__(self, job: Job, kind: str) -> None:
        self.job, self.kind = job, kind
        if kind.startswith("xla"):
            import torch_xla  # noqa: F401
        self.contestant = self._made()

    def _made(self) -> Torch | Jax:
        if self.kind == "jax":
            return Jax(self.job)
        if self.kind == "inductor":
            return Torch(self.job, torch.device("cpu"), inductor=True)
        if self.kind.startswith("captured "):
            import torch_xla  # noqa: F401

            return Torch(self.job, torch.device(self.kind.removeprefix("captured ")), replay=True)
        return Torch(self.job, torch.device(self.kind))

    def first(self) -> float:
        """The first step; some more are made that do not count."""
        _, found = self.step()
        for _ in range(WARM_UP):
            self.contestant.step()
            self.contestant.wait()
        return found

    def step(self) -> tuple[float, float]:
        """One step: until it returns, and until the device is done."""
        return time_step(self.contestant)

    def row(self) -> float:
        """A step of a turn of steps in a row, synchronized after each."""
        return _over_a_turn(lambda: self.step()[1])

    def loop(self) -> float:
        """A step of a turn of loops, each without waiting in between."""
        return _over_a_turn(lambda: time_loop(self.contestant, LOOP))

    def parameters(self) -> tuple[list[float], list[float]]:
        """All parameters as they were at first, and as they are now."""
        assert isinstance(self.contestant, Torch)
        return self.contestant.initial.tolist(), self.contestant.parameters().tolist()

    def begin(self) -> None:
        """From now on no garbage is collected."""
        gc.collect()
        gc.disable()


def _over_a_turn(measure: Callable[[], float]) -> float:
    """The median of what it returns while a turn lasts."""
    end, found = time.perf_counter() + TURN, [measure()]
    while time.perf_counter() < end:
        found.append(measure())
    return median(found)


def _serve(connection: Connection, job: str, kind: str) -> None:
    """Answers what Apart asks until it hangs up."""
    server = None
    while True:
        try:
            what = connection.recv()
        except EOFError:
            return
        try:
            server = server or _Server(next(known for known in JOBS if known.name == job), kind)
            connection.send((True, getattr(server, what)()))
        except Exception:
            connection.send((False, traceback.format_exc()))
