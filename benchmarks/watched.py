"""What watching.py measures, and the process that measures it: ``python -m benchmarks.watched``, started by it."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from benchmarks.record import CASES, LAYERS, SIZE, Case, State, measure_round, repeat
from benchmarks.report import no_garbage_collection
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.recorder import source_info

DEEP = 30  # Python frames below the benchmark's own, as deep as a large model


def training_step(state: State) -> None:
    """Records forward and backward pass of a small network."""
    loss = _network(state)(state.x).sum()
    torch.autograd.grad(loss, [*_network(state).parameters()])


def _network(state: State) -> nn.Module:
    if state.x.device not in _networks:
        layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(SIZE, SIZE), nn.ReLU()))
        _networks[state.x.device] = nn.Sequential(*layers).to(state.x.device)
    return _networks[state.x.device]


_networks: dict[torch.device, nn.Module] = {}
STEP = f"training step of {LAYERS} × (linear, relu)"
WATCHED: dict[str, tuple[Case, int]] = {name: case for name, case in CASES.items() if "backward" not in name}
WATCHED[STEP] = (repeat(training_step), 4)  # a round should fit into a time slice of a busy machine


def work() -> None:
    """First says what a call of each case counts; then measures a round for each line on stdin. Answers are JSON."""
    device = torch.device("xla:0")
    print(json.dumps(count_by_case(device)), flush=True)
    for _ in sys.stdin:
        answer = []
        with no_garbage_collection():
            for captured, frames in ((False, 0), (True, 0), (True, DEEP)):
                source_info.set_capture(captured)
                answer.append({name: _measure_below(frames, case, device) for name, case in WATCHED.items()})
        source_info.set_capture(False)
        print(json.dumps(answer), flush=True)


def _measure_below(frames: int, case: tuple[Case, int], device: torch.device) -> float:
    """Call measure_round with ``frames`` more Python frames on the stack."""
    return _measure_below(frames - 1, case, device) if frames else measure_round(*case, device)


def count_by_case(device: torch.device) -> dict[str, tuple[float, float]]:
    """Return counter updates and recorded operations of a call, by case; zeros if the build does not count."""
    found = {}
    for name, (case, _) in WATCHED.items():
        moved = []
        for calls in (1, 10, 110):  # the last two differ by 100 calls; what a round itself does is in both
            before = metrics.counters()
            measure_round(case, calls, device)
            moved.append({n: value - before.get(n, 0) for n, value in metrics.counters().items()})
        grown = {n: (moved[2][n] - moved[1].get(n, 0)) / 100 for n in moved[2]}
        found[name] = sum(grown.values()), sum(value for n, value in grown.items() if n.startswith("xla::"))
    return found


if __name__ == "__main__":
    work()
