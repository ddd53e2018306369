"""A training step of whole models on xla, next to eager CPU, torch.compile (inductor) and hand-written jax.

    python -m benchmarks.step [--quick] [--only GPT] [--device xla:0] [--without inductor,jax,captured]

Three tables: steps one by one, each after a pause; steps in a row, synchronized after each, as a script
trains that reads every loss; and steps in a loop that waits at its end only, as one that reads its loss now and then.

First step: seconds until the first step is done, compiling included. Host: milliseconds until torch_xla.sync() has
returned without waiting, that is until Python is free to prepare the next step. Step: milliseconds until the device is
done. The contestants, each in a separate process, take turns: step by step, each from an idle device, or row by row,
or loop by loop; medians. With inductor, the model with its loss is compiled, as users do; the optimizer is torch's.
Captured: the step is a function of torch_xla.compile(replay=True), which is launched without running it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch

from benchmarks.contestants import JOBS, Apart, Job
from benchmarks.report import setting, table

PAUSE = 0.02  # seconds before each measured step, in which the threads of the contestant before go to sleep


@dataclass
class Times:
    """What was measured of one contestant, in seconds."""

    first: float = 0.0
    host: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    row: list[float] = field(default_factory=list)  # of each step
    loop: list[float] = field(default_factory=list)  # of each step

    def add(self, contestant: Apart) -> None:
        """Measures one more step."""
        host, step = contestant.ask("step")
        self.host.append(host)
        self.step.append(step)

    def add_row(self, contestant: Apart) -> None:
        """Measures some steps in a row, synchronized after each."""
        self.row.append(contestant.ask("row"))

    def add_loop(self, contestant: Apart) -> None:
        """Measures some steps in a row, without waiting in between."""
        self.loop.append(contestant.ask("loop"))


@contextmanager
def contestants(job: Job, device: str, without: Collection[str]) -> Iterator[dict[str, Apart]]:
    """All that take part, by name, each ended in the end."""
    kinds = {
        "here": device, "captured": f"captured {device}", "eager": "cpu", "inductor": "inductor", "jax": "jax",
    }  # fmt: skip
    made = {name: Apart(job, kind) for name, kind in kinds.items() if name not in without}
    try:
        yield made
    finally:
        for contestant in made.values():
            contestant.end()


def measure(job: Job, device: str, rounds: int, without: Collection[str] = ()) -> dict[str, Times]:
    """What each contestant took for one job."""
    with contestants(job, device, without) as taking_part:
        times = {name: Times() for name in taking_part}
        for name, contestant in taking_part.items():
            times[name].first = contestant.ask("first")
        check_same_training(job, taking_part["here"], taking_part["eager"])
        if "captured" in taking_part:
            check_same_training(job, taking_part["captured"], taking_part["eager"])
        for contestant in taking_part.values():
            contestant.ask("begin")

        def in_turns(add: Callable[[Times, Apart], None], rounds: int) -> None:
            for _ in range(rounds):
                for name, contestant in taking_part.items():
                    time.sleep(PAUSE)
                    add(times[name], contestant)

        in_turns(Times.add, rounds)
        in_turns(Times.add_row, max(3, rounds // 4))
        in_turns(Times.add_loop, max(3, rounds // 4))
    return times


def check_same_training(job: Job, ours: Apart, eager: Apart) -> None:
    """Raises RuntimeError unless both have moved their parameters the same way: a step that does not train is fast.

    The bound is wide: AdamW turns gradients that consist of rounding errors into steps of full size.
    """
    (_, here), (initial, there) = (
        [torch.tensor(values) for values in contestant.ask("parameters")] for contestant in (ours, eager)
    )
    moved, apart = torch.linalg.vector_norm(there - initial), torch.linalg.vector_norm(here - there)
    if not apart <= 0.25 * moved:  # so that NaN raises, too
        raise RuntimeError(
            f"{job.name}: trained on the CPU, parameters moved by {moved:.3g}; here they end {apart:.3g} off"
        )


def row(name: str, times: dict[str, Times]) -> list[str]:
    """The cells of one job, in the order of HEAD."""
    here, step = times["here"], {contestant: median(found.step) * 1e3 for contestant, found in times.items()}
    host = median(here.host) * 1e3
    cells = [name, f"{here.first:.1f}", f"{host:.2f}", f"{step['here']:.2f}", *comparison_cells(step)]
    captured_host = f"{median(times['captured'].host) * 1e3:.2f}" if "captured" in times else ""
    cells = [*cells, f"{host / step['eager']:.2f}", f"{times['jax'].first:.1f}" if "jax" in times else ""]
    return [*cells, captured_host, *captured_cells(step)]


def short_row(name: str, times: dict[str, list[float]]) -> list[str]:
    """The cells of one job, in the order of SHORT_HEAD after its name."""
    found = {contestant: median(measured) * 1e3 for contestant, measured in times.items()}
    return [name, f"{found['here']:.2f}", *comparison_cells(found), *captured_cells(found)]


def captured_cells(found: dict[str, float]) -> list[str]:
    """The time of the step that torch_xla.compile(replay=True) launches, and its ratio to jax."""
    if "captured" not in found:
        return ["", ""]
    captured = found["captured"]
    return [f"{captured:.2f}", f"{captured / found['jax']:.2f}" if "jax" in found else ""]


def comparison_cells(found: dict[str, float]) -> list[str]:
    """The time of each other contestant, and ours in times of it; empty where it does not take part."""
    others = ("eager", "inductor", "jax")
    cells = [
        (f"{found[name]:.2f}", f"{found['here'] / found[name]:.2f}") if name in found else ("", "") for name in others
    ]
    return [text for pair in cells for text in pair]


HEAD = [
    "training step", "first step, s", "host, ms", "step, ms", "eager CPU", "ratio", "inductor", "ratio", "jax", "ratio",
    "host / eager", "jax first step, s", "captured host, ms", "captured, ms", "captured / jax",
]  # fmt: skip
SHORT_HEAD = [
    "here, ms", "eager CPU", "ratio", "inductor", "ratio", "jax", "ratio", "captured, ms", "captured / jax",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:0", help="what to compare with eager CPU; cpu shows the noise")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--without", default="", help="contestants to leave out: inductor, jax, captured")
    options = parser.parse_args()
    jobs = [job for job in JOBS if options.only in job.name]
    rounds, without = 5 if options.quick else 40, options.without.split(",")
    found = {job.name: measure(job, options.device, rounds, without) for job in jobs}
    print(f"{setting()}\n\n{table(HEAD, [row(name, times) for name, times in found.items()])}\n")
    rows = [short_row(name, {who: times.row for who, times in job.items()}) for name, job in found.items()]
    loops = [short_row(name, {who: times.loop for who, times in job.items()}) for name, job in found.items()]
    print(f"{table(['a step in a row', *SHORT_HEAD], rows)}\n")
    print(table(["a step in a loop", *SHORT_HEAD], loops))


if __name__ == "__main__":
    main()
