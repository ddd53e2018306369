"""What a training step costs the host where replicas exchange gradients, next to the same step without.

    python benchmarks/replicas.py [--quick] [--parameters 160] [--ranks 2]

Each rank is a process with a CPU device. The contestants take turns, step by step: ``optimizer.step()`` on one device,
and ``xm.optimizer_step(optimizer)``, which averages the gradients over the ranks first; gradients are there already.
Host time is the CPU time of the thread that runs the script (waiting costs none): record until the optimizer has
returned, launch until torch_xla.sync() has returned without waiting. Medians of rank 0.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
from benchmarks.report import no_garbage_collection, setting, table

WARM_UP = 5
WIDTH = 16  # of a layer: what is measured is the host


class Replica:
    """A model with gradients on this rank's device, and its optimizer."""

    def __init__(self, parameters: int) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(parameters // 2))).to("xla")
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        for p in self._model.parameters():
            p.grad = torch.ones_like(p)
        torch_xla.sync(wait=True)

    def step(self, exchange: bool) -> tuple[float, float]:
        """Microseconds of the host: to record, and to launch."""
        start = time.thread_time_ns()
        if exchange:
            xm.optimizer_step(self._optimizer)
        else:
            self._optimizer.step()
        recorded = time.thread_time_ns()
        torch_xla.sync()
        launched = time.thread_time_ns()
        xm.wait_device_ops()
        return (recorded - start) / 1e3, (launched - recorded) / 1e3


def measure(parameters: int, rounds: int) -> dict[bool, tuple[float, float]]:
    """Median (record, launch) without and with the exchange."""
    replicas = {exchange: Replica(parameters) for exchange in (False, True)}
    samples: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with no_garbage_collection():
        for number in range(WARM_UP + rounds):
            xm.rendezvous(f"round {number}")
            for exchange, replica in replicas.items():
                sample = replica.step(exchange)
                if number >= WARM_UP:
                    samples[exchange].append(sample)
    return {e: (median(r for r, _ in found), median(n for _, n in found)) for e, found in samples.items()}


def report(index: int, parameters: int, rounds: int) -> None:
    """Measures; rank 0 prints."""
    found = measure(parameters, rounds)
    if index == 0:
        print(f"{parameters} parameters, {xm.xrt_world_size()} ranks. {setting()}\n")
        sums = {exchange: sum(times) for exchange, times in found.items()}
        names = {False: "one device: optimizer.step()", True: "replicas: xm.optimizer_step()"}
        rows = [
            [name, *(f"{t:.0f}" for t in found[e]), f"{sums[e]:.0f}", f"{sums[e] / sums[False]:.2f}"]
            for e, name in names.items()
        ]
        print(table(["host, µs", "record", "launch", "step", "ratio"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=160)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    xmp.spawn(report, args=(args.parameters, 15 if args.quick else 100), nprocs=args.ranks)


if __name__ == "__main__":
    main()
