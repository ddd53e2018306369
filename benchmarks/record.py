"""Host time of one operation: recording it on xla, next to running it eagerly on the CPU, in the same run.

    python benchmarks/record.py [--quick] [--check] [--device xla:0]

Tensors are 8 x 8, so that what is measured on the CPU is almost all dispatch. The two devices take turns, round by
round, and the table shows medians over the rounds. Results are dropped as they come, on both devices; what is pending
on xla at the end of a round is dropped too, so that nothing is compiled or run within a measurement.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.report import geometric_mean, no_garbage_collection, setting, table

TARGET_MEAN, TARGET_WORST = 1.0, 1.6  # times eager CPU: the geometric mean, and any single operation
SIZE = 8
LAYERS = 4  # of linear + ReLU in the case "backward"


@dataclass(frozen=True)
class State:
    """The tensors of one round on one device, new for each round."""

    x: Tensor
    y: Tensor
    row: Tensor
    weight: Tensor
    bias: Tensor

    @staticmethod
    def on(device: torch.device) -> State:
        def make(*shape: int) -> Tensor:
            return torch.ones(shape).to(device)

        weight = make(SIZE, SIZE).requires_grad_()
        return State(make(SIZE, SIZE), make(SIZE, SIZE), make(2, SIZE), weight, make(SIZE).requires_grad_())


Case = Callable[[State, int], float]  # seconds that a number of calls take


def repeat(operation: Callable[[State], object]) -> Case:
    """A measurement of ``operation``: seconds for a number of calls."""

    def measure(state: State, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            operation(state)
        return time.perf_counter() - start

    return measure


def write_slice(state: State) -> None:
    state.x[2:4] = state.row


def measure_backward(state: State, calls: int) -> float:
    """Seconds for a number of backward passes; the forward passes before them do not count."""
    losses = []
    for _ in range(calls):
        out = state.x
        for _ in range(LAYERS):
            out = F.relu(F.linear(out, state.weight, state.bias))
        losses.append(out.sum())
    parameters = (state.weight, state.bias)
    start = time.perf_counter()
    for loss in losses:
        torch.autograd.grad(loss, parameters)
    return time.perf_counter() - start


# The name of each case, how to measure it, and how many calls make a round.
CASES: dict[str, tuple[Case, int]] = {
    "add": (repeat(lambda s: s.x + s.y), 500),
    "add scalar": (repeat(lambda s: s.x + 1.5), 500),
    "relu": (repeat(lambda s: torch.relu(s.x)), 500),
    "add_": (repeat(lambda s: s.x.add_(1)), 500),
    "view": (repeat(lambda s: s.x.view(-1)), 500),
    "t": (repeat(lambda s: s.x.t()), 500),
    "slice": (repeat(lambda s: s.x[2:4]), 500),
    "write to a slice": (repeat(write_slice), 300),
    "linear with grad": (repeat(lambda s: F.linear(s.x, s.weight, s.bias)), 500),
    f"backward of {LAYERS} × (linear, relu)": (measure_backward, 50),
}


def synchronize(device: torch.device) -> None:
    """Runs what is pending and waits for it."""
    if device.type == "xla":
        import torch_xla

        torch_xla.sync(wait=True)


def measure(devices: list[torch.device], rounds: int) -> dict[str, list[float]]:
    """Median microseconds per call of each case, in the order of ``devices``."""
    results = {}
    for name, (case, calls) in CASES.items():
        times: list[list[float]] = [[] for _ in devices]
        with no_garbage_collection():
            for _ in range(rounds + 1):
                for device, samples in zip(devices, times, strict=True):
                    samples.append(measure_round(case, calls, device))
        results[name] = [median(samples[1:]) for samples in times]  # the first round warms caches
    return results


def measure_round(case: Case, calls: int, device: torch.device) -> float:
    """Microseconds per call in one round on one device."""
    state = State.on(device)
    synchronize(device)
    case(state, 5)
    return case(state, calls) / calls * 1e6


def report(results: dict[str, list[float]], device: torch.device) -> str:
    """The results as a markdown table, with the geometric mean of the ratios as its last row."""
    ratios = [ours / eager for ours, eager in results.values()]
    rows = [[name, f"{ours:.2f}", f"{eager:.2f}", f"{ours / eager:.2f}"] for name, (ours, eager) in results.items()] + [
        ["geometric mean", "", "", f"{geometric_mean(ratios):.2f}"]
    ]
    return table(["host µs per operation", f"{device.type}, recorded", "CPU, eager", "ratio"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:0", help="what to compare with eager CPU; cpu shows the noise")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--check", action="store_true", help="end with 1 where a target is missed")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "xla":
        import torch_xla  # noqa: F401
    results = measure([device, torch.device("cpu")], rounds=5 if options.quick else 51)
    print(f"{setting()}\n\n{report(results, device)}")
    ratios = [ours / eager for ours, eager in results.values()]
    missed = geometric_mean(ratios) > TARGET_MEAN or max(ratios) > TARGET_WORST
    print(f"\ntargets: mean at most {TARGET_MEAN}, each at most {TARGET_WORST}: {'missed' if missed else 'met'}")
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
