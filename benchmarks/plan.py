"""The rows of a plan for the Llama of examples/train_llama.py, next to the same steps written by hand in jax.

    torch-xla plan --targets v5e:4x4 --vary mesh=1x16x1,4x4x1,2x4x2 --vary batch_size=64,128 --vary remat=on,off \\
        --json plan.json examples/train_llama.py --preset 1b --stack --bf16 --length 2048
    python -m benchmarks.plan plan.json [--length 2048]

Compares the combinations that fit and recompute activations. Per chip and step: FLOPs, bytes of HBM, peak of memory,
bytes of collectives, estimated time; the rate of all chips; and how many pairs of combinations both put in the same
order. jax shards weights and activations over data x fsdp x tensor as the example does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import jax_large
from benchmarks.report import table
from torch_xla import aot
from torch_xla._engine.aot import program_analysis, target_compiler

_AXES = ("data", "fsdp", "tensor")
_BATCH = PartitionSpec(("data", "fsdp"))
#: Sharding of the last two dimensions, (inputs, outputs), by the name of a parameter; the others are replicated.
_WEIGHTS = {
    **dict.fromkeys(("query", "key", "value", "gate", "up", "head"), ("fsdp", "tensor")),
    **dict.fromkeys(("out", "down", "embedding"), ("tensor", "fsdp")),
}
#: Combinations whose values differ by at most this share have no order.
_TIE = 0.01
#: Ranked quantities: name in a plan's rows, title, unit.
_COLUMNS = (
    ("flops", "TFLOP", 1e12), ("bytes", "HBM, GB", 1e9), ("memory", "peak, GB", 1e9),
    ("collective_bytes", "collectives, GB", 1e9), ("seconds", "time, ms", 1e-3),
    ("per_second", "rate, 1/s", 1.0),
)  # fmt: skip


def compile_in_jax(target: aot.Target, sizes: Sequence[int], batch: int, length: int) -> dict[str, float]:
    """Compile the step over a mesh of ``sizes``, and count as the plan does."""
    mesh = Mesh(np.array(target.devices[: int(np.prod(sizes))]).reshape(sizes), _AXES)
    rows = NamedSharding(mesh, _BATCH)
    state, step = jax_large.llama(lambda x: jax.lax.with_sharding_constraint(x, rows))

    def place(path: Any, struct: Any) -> jax.ShapeDtypeStruct:
        axes = _WEIGHTS.get(getattr(path[-1], "key", ""), ())
        spec = PartitionSpec(*[None] * (len(struct.shape) - len(axes)), *axes)
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=NamedSharding(mesh, spec))

    state = jax.tree_util.tree_map_with_path(place, state)
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32, sharding=rows)
    results = jax.tree.map(lambda a: a.sharding, state), NamedSharding(mesh, PartitionSpec())
    lowered = jax.jit(step, out_shardings=results, donate_argnums=0).lower(state, tokens, tokens)
    program = target_compiler.TargetProgram(target, lowered, mesh.size)
    found = program_analysis.analyze_program(target_compiler.compile_for_target(program, None))
    return {
        "flops": found.work.flops, "bytes": found.work.bytes, "memory": found.memory.peak,
        "collective_bytes": sum(row.bytes for row in found.collectives), "seconds": found.work.seconds,
    }  # fmt: skip


def is_comparable(row: Mapping[str, Any]) -> bool:
    """Whether jax_large.llama computes the step of a row."""
    return row["result"] == "fits" and row["values"].get("remat") == "on" and "mesh" in row["values"]


def main() -> None:
    """Print the comparison, and how many pairs have the same order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--length", type=int, default=2048)
    options = parser.parse_args()
    lines: list[list[str]] = []
    numbers: list[tuple[dict[str, float], dict[str, float]]] = []
    for row in filter(is_comparable, json.loads(options.plan.read_text())["rows"]):
        values = row["values"]
        here = {name: row["memory"]["required"] if name == "memory" else row[name] for name, *_ in _COLUMNS}
        sizes = [int(size) for size in values["mesh"].split("x")]
        in_jax = compile_in_jax(aot.get_target(row["target"]), sizes, int(values["batch_size"]), options.length)
        in_jax["per_second"] = row["per_second"] * row["seconds"] / in_jax["seconds"]
        numbers.append((here, in_jax))
        lines.append([row["label"], *(_compare(here[n], in_jax[n], unit) for n, _, unit in _COLUMNS)])
        print(lines[-1], file=sys.stderr, flush=True)
    print(table(["combination", *(f"{title}: here, jax" for _, title, _ in _COLUMNS)], lines))
    for name, title, _ in _COLUMNS:
        alike, compared = count_same_order([(here[name], in_jax[name]) for here, in_jax in numbers])
        print(f"{title.split(',')[0]}: {alike} of {compared} pairs in the same order")


def count_same_order(values: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Return how many pairs of combinations have one order in (here, jax), and how many are compared.

    Pairs whose values here differ by at most 1 % are not compared.
    """
    compared = [
        (a, b) for a, b in itertools.combinations(values, 2) if abs(a[0] - b[0]) > _TIE * max(abs(a[0]), abs(b[0]))
    ]
    return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in compared), len(compared)


def _compare(here: float, in_jax: float, unit: float) -> str:
    return f"{here / unit:.4g}, {in_jax / unit:.4g} ({here / in_jax - 1:+.1%})"


if __name__ == "__main__":
    main()
