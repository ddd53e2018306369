"""A training step on a GPU: torch_xla next to PyTorch's CUDA, torch.compile and hand-written jax.

    python -m benchmarks.gpu [--only GPT-2] [--contestants xla,captured,cuda,inductor,jax] [--json FILE]

It needs a CUDA build of torch and jax's CUDA plugin. Each contestant trains in a separate process, one after the
other. First: seconds of the first step, compilation included. Each: milliseconds of a step that is synchronized. Loop:
milliseconds of a step in a loop of 20 that is synchronized at its end. Host: milliseconds until the step returns
without synchronization. Peak: MiB that the contestant allocated on the GPU. Medians. Large models train in bfloat16,
small ones in float32 without TF32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks import jax_large, models
from benchmarks.contestants import JOBS, MOMENTUM, Contestant, Jax, Job, Torch, time_loop, time_step
from benchmarks.report import setting, table

CONTESTANTS = ("xla", "captured", "cuda", "inductor", "jax")
WARM_UP, STEPS, LOOP, LOOPS = 6, 20, 20, 3
LIMIT = 150.0  # seconds for one contestant
SMALL = ("MLP-50, AdamW", "GPT-6L, AdamW")


def _make_bfloat16(model: Callable[[], nn.Module]) -> nn.Module:
    return model().to(torch.bfloat16)


def _make_images(batch: int) -> tuple[Tensor, Tensor]:
    images, labels = models.images(batch, 3, 224, 1000)
    return images.to(torch.bfloat16), labels


def _make_jax(make: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the state, with random parameters, and the compiled step of a model of jax_large."""
    shapes, step = make(lambda x: x)
    random = np.random.default_rng(0)
    fill = lambda s: jnp.asarray(0.02 * random.standard_normal(s.shape, np.float32), s.dtype)
    parameters = jax.tree.map(fill, shapes[0])
    rest = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[1:])
    return (parameters, *rest), jax.jit(step, donate_argnums=0)


LARGE = [
    Job(
        "GPT-2 small, bf16, AdamW",
        partial(_make_bfloat16, partial(models.GPT, 12, 768, 12, 50257, 1024)),
        partial(models.text, 8, 1024, 50257),
        AdamW,
        partial(_make_jax, jax_large.gpt2),
    ),
    Job(
        "ResNet-50, bf16, SGD",
        partial(_make_bfloat16, partial(models.ResNet, 50, classes=1000)),
        partial(_make_images, 64),
        MOMENTUM,
        partial(_make_jax, jax_large.resnet50),
    ),
]
ALL = [*LARGE, *(job for job in JOBS if job.name in SMALL)]


@dataclass
class Result:
    """What was measured of one contestant: seconds, milliseconds (three), MiB."""

    first: float
    host: float
    each: float
    loop: float
    peak: float


class _Jax(Jax):
    """A job in jax, whose batch may be bfloat16, which numpy lacks."""

    def __init__(self, job: Job) -> None:
        jax.config.update("jax_default_matmul_precision", "highest")
        self.state, self.compiled = job.in_jax()
        self.inputs, self.targets = (_convert(tensor) for tensor in job.batch())


def _convert(tensor: Tensor) -> jax.Array:
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def make_contestant(job: Job, kind: str) -> Contestant:
    """Return the contestant ``kind`` of CONTESTANTS for a job, on the GPU."""
    if kind == "jax":
        return _Jax(job)
    if kind in ("xla", "captured"):
        import torch_xla  # noqa: F401

        return Torch(job, torch.device("xla:0"), replay=kind == "captured")
    return Torch(job, torch.device("cuda"), inductor=kind == "inductor")


def measure(job: Job, kind: str) -> Result:
    """Train with one contestant in this process and measure it."""
    contestant = make_contestant(job, kind)
    first = time_step(contestant)[1]
    for _ in range(WARM_UP):
        time_step(contestant)
    times = [time_step(contestant) for _ in range(STEPS)]
    host, each = (1e3 * median(column) for column in zip(*times, strict=True))
    loop = 1e3 * median(time_loop(contestant, LOOP) for _ in range(LOOPS))
    return Result(first, host, each, loop, _read_peak(kind) / 2**20)


def _read_peak(kind: str) -> int:
    if kind in ("cuda", "inductor"):
        return torch.cuda.max_memory_allocated()
    return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def _run_apart(job: Job, kind: str) -> Result | None:
    """Measure in a separate process; return None, and print why, if it fails."""
    variables = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", job.name, "--worker", kind]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"{job.name}, {kind}: no result in {LIMIT:.0f} s", flush=True)
        return None
    if done.returncode:
        print(f"{job.name}, {kind}: exit code {done.returncode}\n{done.stderr[-1500:]}", flush=True)
        return None
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    jobs = [job for job in ALL if arguments.only in job.name]
    if arguments.worker:
        print(json.dumps(asdict(measure(jobs[0], arguments.worker))))
        return
    rows, results = [], {}
    for job in jobs:
        for kind in arguments.contestants.split(","):
            result = _run_apart(job, kind)
            if result is None:
                continue
            results[f"{job.name}, {kind}"] = asdict(result)
            r = result
            cells = [f"{r.first:.1f}", f"{r.host:.2f}", f"{r.each:.2f}", f"{r.loop:.2f}", f"{r.peak:,.0f}"]
            rows.append([job.name, kind, *cells])
            print(rows[-1], flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
    print(setting())
    print(table(["model", "contestant", "first, s", "host, ms", "each, ms", "loop, ms", "peak, MiB"], rows))


if __name__ == "__main__":
    main()
