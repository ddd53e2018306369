"""Training steps compiled for accelerators that are not here, next to the same models written by hand in jax.

    python -m benchmarks.aot v5e h100 [--only LeNet]

Per chip: multiplications and additions of products, all floating-point operations, bytes of HBM, peak of memory; and
seconds of compilation. Everything of the jax program is counted in the same way, from what the same compiler makes.
Nothing is run on the target, so the numbers are exact, and the same on every machine.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import torch.nn.functional as F
from jax.sharding import SingleDeviceSharding
from torch import Tensor, nn
from torch.optim import Optimizer

import torch_xla
from benchmarks.report import table
from benchmarks.step import JOBS, Job
from torch_xla import aot
from torch_xla._engine.aot import analysis, compiler
from torch_xla._engine.aot.analysis import Analysis

_HEAD = ["training step", "target", "", "products, GFLOP", "all, GFLOP", "HBM, MB", "peak, MB", "compiled in, s"]


def _step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def ours(job: Job, target: aot.Target) -> list[float]:
    """The second step in torch: in the first one the optimizer makes its state."""
    model = job.model().to("xla")
    optimizer = job.optimizer(model.parameters())
    inputs, targets = (tensor.to("xla") for tensor in job.batch())
    _step(model, optimizer, inputs, targets)
    torch_xla.sync()
    found = aot.compile(_step, model, optimizer, inputs, targets, target=target)
    return _numbers(Analysis(found.memory, found.cost, (), (), ()), found.seconds)


def in_jax(job: Job, target: aot.Target) -> list[float]:
    """The step in jax."""
    state, step = job.in_jax()
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (state, *(jnp.asarray(t.numpy()) for t in job.batch()))
    )
    place = SingleDeviceSharding(target.devices[0])
    plain = step.__wrapped__  # type: ignore[attr-defined]  # jax.jit's
    jitted = jax.jit(plain, in_shardings=place, out_shardings=place, donate_argnums=0)
    compiled = compiler.compile(compiler.Lowered(target, jitted.lower(*arguments), 1), None)
    return _numbers(analysis.analyse(compiled), compiled.seconds)


def _numbers(found: Analysis, seconds: float) -> list[float]:
    work = found.work
    return [work.products / 1e9, work.flops / 1e9, work.bytes / 1e6, found.memory.peak / 1e6, seconds]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--only", default="", help="models with this in their names")
    options = parser.parse_args()
    rows = []
    for job in JOBS:
        if options.only not in job.name:
            continue
        for name in options.targets:
            target = aot.target(name)
            both = ours(job, target), in_jax(job, target)
            for who, numbers in zip(("here", "jax"), both, strict=True):
                rows.append([job.name, name, who, *(f"{n:.4g}" for n in numbers)])
            ratios = [a / b if b else 1.0 for a, b in zip(*both, strict=True)]
            rows.append([job.name, name, "ratio", *(f"{r:.3f}" for r in ratios)])
    print(table(_HEAD, rows))


if __name__ == "__main__":
    main()
