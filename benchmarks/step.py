"""A training step of whole models on xla, next to eager CPU, torch.compile (inductor) and hand-written jax.

    python -m benchmarks.step [--quick] [--only GPT] [--device xla:0] [--without inductor,jax]

Two tables: steps one by one, and steps in a loop that waits at its end only, as a script trains that reads its loss now
and then.

First step: seconds until the first step is done, compiling included. Host: milliseconds until torch_xla.sync() has
returned without waiting, that is until Python is free to prepare the next step. Step: milliseconds until the device is
done. The contestants take turns, step by step, each from an idle device, or loop by loop; medians. With inductor, the
model with its loss is compiled, as users do; the optimizer is torch's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Protocol

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks import jax_models, jax_resnet, models
from benchmarks.report import no_garbage_collection, setting, table

WARM_UP = 4  # steps after the first until nothing compiles any more
LOOP = 10  # steps of a loop, of which Python may be ahead
PAUSE = 0.02  # seconds before each measured step, in which the threads of the contestant before go to sleep


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

    def __init__(self, job: Job, device: torch.device, inductor: bool = False) -> None:
        torch.manual_seed(0)
        self.lazy = device.type == "xla"
        self.model = job.model()
        self.loss = lambda inputs, targets: models.loss(self.model(inputs), targets)
        if inductor:
            self.loss = torch.compile(self.loss)
        self.initial = self.parameters()
        self.model.to(device)
        self.inputs, self.targets = (tensor.to(device) for tensor in job.batch())
        self.optimizer = job.optimizer(self.model.parameters())
        self.wait()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.inputs, self.targets).backward()
        self.optimizer.step()
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


@dataclass
class Times:
    """What was measured of one contestant, in seconds."""

    first: float = 0.0
    host: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)  # of each step

    def add(self, contestant: Contestant) -> None:
        """Measures one more step."""
        start = time.perf_counter()
        contestant.step()
        host = time.perf_counter()
        contestant.wait()
        self.host.append(host - start)
        self.step.append(time.perf_counter() - start)

    def add_loop(self, contestant: Contestant) -> None:
        """Measures some steps in a row, without waiting in between."""
        start = time.perf_counter()
        for _ in range(LOOP):
            contestant.step()
        contestant.wait()
        self.loop.append((time.perf_counter() - start) / LOOP)

    def warm_up(self, contestant: Contestant) -> None:
        """Measures the first step, and makes some more that do not count."""
        self.add(contestant)
        self.first = self.step[0]
        for _ in range(WARM_UP):
            contestant.step()
            contestant.wait()
        self.host, self.step = [], []


def measure(job: Job, device: torch.device, rounds: int, without: Collection[str] = ()) -> dict[str, Times]:
    """What each contestant took for one job."""
    torch.compiler.reset()  # or the fifth job would run over its limit of variants of one function
    ours, eager = Torch(job, device), Torch(job, torch.device("cpu"))
    others: dict[str, Callable[[], Contestant]] = {
        "inductor": lambda: Torch(job, torch.device("cpu"), inductor=True),
        "jax": lambda: Jax(job),
    }
    made = {name: make() for name, make in others.items() if name not in without}
    contestants: dict[str, Contestant] = {"here": ours, "eager": eager, **made}
    times = {name: Times() for name in contestants}
    for name, contestant in contestants.items():
        times[name].warm_up(contestant)
    check_same_training(job, ours, eager)
    with no_garbage_collection():
        for _ in range(rounds):
            for name, contestant in contestants.items():
                time.sleep(PAUSE)
                times[name].add(contestant)
        for _ in range(max(3, rounds // 4)):
            for name, contestant in contestants.items():
                time.sleep(PAUSE)
                times[name].add_loop(contestant)
    return times


def check_same_training(job: Job, ours: Torch, eager: Torch) -> None:
    """Raises RuntimeError unless both have moved their parameters the same way: a step that does not train is fast.

    The bound is wide: AdamW turns gradients that are nothing but rounding into steps of full size.
    """
    moved = torch.linalg.vector_norm(eager.parameters() - eager.initial)
    apart = torch.linalg.vector_norm(ours.parameters() - eager.parameters())
    if not apart <= 0.25 * moved:  # so that NaN raises, too
        raise RuntimeError(
            f"{job.name}: trained on the CPU, parameters moved by {moved:.3g}; here they end {apart:.3g} off"
        )


def row(name: str, times: dict[str, Times]) -> list[str]:
    """The cells of one job, in the order of HEAD."""
    here, step = times["here"], {contestant: median(found.step) * 1e3 for contestant, found in times.items()}
    host = median(here.host) * 1e3
    cells = [name, f"{here.first:.1f}", f"{host:.2f}", f"{step['here']:.2f}", *compared(step)]
    return [*cells, f"{host / step['eager']:.2f}", f"{times['jax'].first:.1f}" if "jax" in times else ""]


def loop_row(name: str, times: dict[str, Times]) -> list[str]:
    """The cells of one job, in the order of LOOP_HEAD."""
    loop = {contestant: median(found.loop) * 1e3 for contestant, found in times.items()}
    return [name, f"{loop['here']:.2f}", *compared(loop)]


def compared(found: dict[str, float]) -> list[str]:
    """The time of each other contestant, and ours in times of it; empty where it does not take part."""
    others = ("eager", "inductor", "jax")
    cells = [
        (f"{found[name]:.2f}", f"{found['here'] / found[name]:.2f}") if name in found else ("", "") for name in others
    ]
    return [text for pair in cells for text in pair]


HEAD = [
    "training step", "first step, s", "host, ms", "step, ms", "eager CPU", "ratio", "inductor", "ratio", "jax", "ratio",
    "host / eager", "jax first step, s",
]  # fmt: skip
LOOP_HEAD = ["a step in a loop", "here, ms", "eager CPU", "ratio", "inductor", "ratio", "jax", "ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:0", help="what to compare with eager CPU; cpu shows the noise")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--without", default="", help="contestants to leave out: inductor, jax")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "xla":
        import torch_xla  # noqa: F401
    jobs = [job for job in JOBS if options.only in job.name]
    rounds, without = 5 if options.quick else 40, options.without.split(",")
    found = {job.name: measure(job, device, rounds, without) for job in jobs}
    print(f"{setting()}\n\n{table(HEAD, [row(name, times) for name, times in found.items()])}\n")
    print(table(LOOP_HEAD, [loop_row(name, times) for name, times in found.items()]))


if __name__ == "__main__":
    main()
