"""Training steps compiled for accelerators that are unavailable, next to the same models written by hand in jax.

    python -m benchmarks.aot v5e:4x4 h100 [--only LeNet]

Per chip: multiplications and additions of products, all floating-point operations, bytes of HBM, peak of memory; and
seconds of compilation. Ours is what ``python -m torch_xla.aot --abstract`` reports of a step; everything of the jax
program is counted in the same way, from what the same compiler makes. Over several chips parameters and batches are
shared out (FSDP). Nothing is run on the target, so the numbers are exact, and the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import aot_steps, jax_large, jax_models
from benchmarks.aot_steps import Split
from benchmarks.jax_large import Spread, State, Step
from benchmarks.report import table
from torch_xla import aot
from torch_xla._engine.aot import program_analysis, target_compiler

_HEAD = ["training step", "target", "", "products, GFLOP", "all, GFLOP", "HBM, MB", "peak, MB", "exchanged, MB",
         "compiled in, s"]  # fmt: skip

#: name: the trainer in jax, from the sharding of activations; batch shapes; how parameters are split
IN_JAX: dict[str, tuple[Callable[[Spread], tuple[State, Step]], Callable[[int], list[Any]], Split]] = {
    "LeNet": (
        lambda spread: _plain(jax_models.lenet()),
        lambda chips: [((64 * chips, 1, 28, 28), jnp.float32), ((64 * chips,), jnp.int32)],
        aot_steps.JOBS["LeNet"].split,
    ),
    "ResNet-50": (
        jax_large.resnet50,
        lambda chips: [((128, 3, 224, 224), jnp.bfloat16), ((128,), jnp.int32)],
        aot_steps.JOBS["ResNet-50"].split,
    ),
    "GPT-2": (jax_large.gpt2, lambda chips: [((8 * chips, 1024), jnp.int32)] * 2, aot_steps.JOBS["GPT-2"].split),
    "Llama-1B": (jax_large.llama, lambda chips: [((4 * chips, 2048), jnp.int32)] * 2, aot_steps.width(2048)),
}


def _plain(trainer: tuple[State, Any]) -> tuple[State, Step]:
    state, step = trainer
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state), step.__wrapped__


def compile_in_torch(name: str, target: aot.Target) -> list[float]:
    """A step in torch, in a separate process: there devices hold no values."""
    command = [sys.executable, "-m", "benchmarks.aot_steps", target.name, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    step = json.loads(done.stdout.splitlines()[-1])
    exchanged = sum(row["bytes"] for row in step["collectives"])
    work, peak = step["work"], step["memory"]["peak"]
    return _row(work["products"], work["flops"], work["bytes"], peak, exchanged, step["compile_seconds"])


def in_jax(name: str, target: aot.Target) -> list[float]:
    """The step in jax."""
    make, batch, split = IN_JAX[name]
    chips = len(target.devices)
    mesh = Mesh(np.array(target.devices), ("fsdp",))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    state, step = make(lambda x: jax.lax.with_sharding_constraint(x, rows))

    def lies(struct: Any) -> jax.ShapeDtypeStruct:
        axis = split(struct.shape, chips)
        spec = PartitionSpec(*("fsdp" if axis == place else None for place in range(len(struct.shape))))
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=NamedSharding(mesh, spec))

    state = jax.tree.map(lies, state)
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for shape, dtype in batch(chips)]
    results = jax.tree.map(lambda a: a.sharding, state), NamedSharding(mesh, PartitionSpec())
    lowered = jax.jit(step, out_shardings=results, donate_argnums=0).lower(state, *arguments)
    compiled = target_compiler.compile_for_target(target_compiler.TargetProgram(target, lowered, chips), None)
    found = program_analysis.analyze_program(compiled)
    work, exchanged = found.work, sum(row.bytes for row in found.collectives)
    return _row(work.products, work.flops, work.bytes, found.memory.peak, exchanged, compiled.seconds)


def _row(products: float, flops: float, moved: float, peak: float, exchanged: float, seconds: float) -> list[float]:
    return [products / 1e9, flops / 1e9, moved / 1e6, peak / 1e6, exchanged / 1e6, seconds]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--only", default="", help="models with this in their names")
    options = parser.parse_args()
    rows = []
    for name in IN_JAX:
        for place in options.targets:
            target = aot.get_target(place)
            if options.only not in name or name == "Llama-1B" and len(target.devices) == 1:
                continue
            both = compile_in_torch(name, target), in_jax(name, target)
            for who, numbers in zip(("here", "jax"), both, strict=True):
                rows.append([name, place, who, *(f"{n:.4g}" for n in numbers)])
            ratios = [a / b if b else 1.0 for a, b in zip(*both, strict=True)]
            rows.append([name, place, "ratio", *(f"{r:.3f}" for r in ratios)])
            print(table(_HEAD, rows[-3:]), file=sys.stderr, flush=True)
    print(table(_HEAD, rows))


if __name__ == "__main__":
    main()
