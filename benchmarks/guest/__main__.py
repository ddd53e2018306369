"""Held-out models next to eager CPU in the same condition: quiet and loaded machines, time and memory.

    python -m benchmarks.guest [--quick] [--only DLRM] [--conditions quiet,two] [--settings kernels]

Each contestant is a separate process, or several where the condition says so. Contestants take turns, measurement by
measurement; the tables show medians. "each": the loss of each step is read; "tenth": of each tenth step. Memory is the
peak of the whole process after training, compilation included. ``--settings`` adds contestants with one setting
changed, for the comparison of the default with its own alternatives (the last table); ``captured`` runs the step in
``torch_xla.compile(replay=True)``. A quota needs permission to create cgroups.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks import report
from benchmarks.guest.conditions import CONDITIONS, Condition, Contestant, busy_processes, limited_cgroup
from benchmarks.guest.jobs import JOBS, GuestJob

#: Contestants by name: device and variables.
DEFAULT = {"eager": ("cpu", {}), "default": ("xla:0", {})}
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "kernels": ("xla:0", {"TORCH_XLA_CPU_KERNELS": "0"}),
    "passive": ("xla:0", {"OMP_WAIT_POLICY": "passive"}),
    "compile": ("xla:0", {"TORCH_XLA_COMPILE_POLICY": "compile"}),
    "checks": ("xla:0", {"TORCH_XLA_CHECK_INDICES": "0"}),
    "captured": ("captured", {}),
}
PAUSE = 0.02  # seconds before each measurement, in which the threads of the contestant before go to sleep


@dataclass
class Result:
    """What one contestant took: medians over rounds and replicas, in ms, MB and seconds."""

    each: float = 0.0
    tenth: float = 0.0
    memory: float = 0.0
    first: float = 0.0
    compile: float = 0.0
    losses: list[float] = field(default_factory=list)


@contextmanager
def start_contestants(
    job: GuestJob, condition: Condition, settings: dict[str, tuple[str, dict[str, str]]]
) -> Iterator[dict[str, Contestant]]:
    """All contestants by name, each with an empty program cache and a separate cgroup."""
    with ExitStack() as stack:
        stack.enter_context(busy_processes(condition.busy))
        contestants = {}
        for name, (device, variables) in settings.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            cgroup = stack.enter_context(limited_cgroup(name, condition.quota)) if condition.quota else None
            # As users run it; other benchmarks compile each new program.
            variables = {"TORCH_XLA_COMPILE_POLICY": "auto", "XLA_PERSISTENT_CACHE_PATH": folder} | variables
            contestants[name] = Contestant(job.name, device, condition, variables, cgroup)
            stack.callback(contestants[name].end)
        yield contestants


def measure(
    job: GuestJob, condition: Condition, settings: dict[str, tuple[str, dict[str, str]]], rounds: int
) -> dict[str, Result]:
    """What each contestant took for one job in one condition."""
    with start_contestants(job, condition, settings) as contestants:
        results = {name: Result() for name in contestants}
        for name, contestant in contestants.items():
            answers = contestant.ask("first")
            results[name].first = median(answer["first"] for answer in answers)
            results[name].compile = median(answer["compile"] for answer in answers)
            results[name].losses = answers[0]["losses"]
        check_same_training(job, results)
        for every, figure in ((1, "each"), (10, "tenth")):
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(rounds):
                for name, contestant in contestants.items():
                    time.sleep(PAUSE)
                    times[name] += contestant.ask(f"train {every} {condition.pause}")
            for name, found in times.items():
                setattr(results[name], figure, median(found))
        for name, contestant in contestants.items():
            results[name].memory = median(contestant.ask("memory"))
    return results


def check_same_training(job: GuestJob, results: dict[str, Result]) -> None:
    """Raises RuntimeError if a first loss differs from eager's by more than a fifth: random numbers differ, a step that
    does not compute is far off."""
    expected = results["eager"].losses[0]
    for name, result in results.items():
        if not abs(result.losses[0] - expected) <= 0.2 * abs(expected):
            raise RuntimeError(
                f"{job.name}: the first loss is {expected:.4g} in eager, {result.losses[0]:.4g} with {name}"
            )


def compute_ratios(results: dict[str, Result], figure: str, name: str = "default") -> float:
    """The figure of a contestant, in times of eager's."""
    return float(getattr(results[name], figure) / getattr(results["eager"], figure))


def compute_slowdown(results: dict[str, Result], figure: str) -> float:
    """How many times the default's figure is that of the best setting, the default included."""
    return float(getattr(results["default"], figure) / min(
        getattr(result, figure) for name, result in results.items() if name != "eager"
    ))  # fmt: skip


def format_condition(found: dict[str, dict[str, Result]]) -> str:
    """The table of one condition: a row for each job, and the geometric mean of the ratios."""
    others = [name for name in next(iter(found.values())) if name not in DEFAULT]
    head = ["", "each, ms", "eager", "ratio", "tenth, ms", "eager", "ratio", "MB", "eager", "ratio", "first step, s",
            "compile, s", *(f"{name}, ratio (tenth)" for name in others)]  # fmt: skip
    rows = []
    for job, results in found.items():
        cells = [job]
        for figure, digits in (("each", 2), ("tenth", 2), ("memory", 0)):
            values = [getattr(results[name], figure) for name in ("default", "eager")]
            cells += [*(f"{value:.{digits}f}" for value in values), f"{values[0] / values[1]:.2f}"]
        cells += [f"{results['default'].first:.2f}", f"{results['default'].compile:.1f}"]
        rows.append(cells + [format_setting([results], name) for name in others])
    means = [
        report.geometric_mean([compute_ratios(results, figure) for results in found.values()])
        for figure in ("each", "tenth", "memory")
    ]
    last = ["geometric mean", *(cell for mean in means for cell in ("", "", f"{mean:.2f}")), "", ""]
    last += [format_setting(list(found.values()), name) for name in others]
    return report.table(head, [*rows, last])


def format_setting(found: list[dict[str, Result]], name: str) -> str:
    """The mean ratios of a contestant with one setting: each step read, and in parentheses each tenth."""
    each, tenth = (
        report.geometric_mean([compute_ratios(results, figure, name) for results in found])
        for figure in ("each", "tenth")
    )
    return f"{each:.2f} ({tenth:.2f})"


def format_summary(found: dict[str, dict[str, dict[str, Result]]]) -> str:
    """The tables of all conditions: geometric means and the worst row; with settings, the worst row of the default in
    times of the best of them."""
    rows, slowdowns = [], []
    for condition, jobs in found.items():
        cells = [condition]
        for figure in ("each", "tenth", "memory"):
            ratios = {job: compute_ratios(results, figure) for job, results in jobs.items()}
            worst = max(ratios, key=lambda job: ratios[job])
            cells += [f"{report.geometric_mean(list(ratios.values())):.2f}", f"{ratios[worst]:.2f} ({worst})"]
        rows.append(cells)
        slowdowns.append([condition, *(format_worst_slowdown(jobs, figure) for figure in ("each", "tenth"))])
    head = ["of eager's", "each step read", "worst", "each tenth read", "worst", "peak memory", "worst"]
    tables = [report.table(head, rows)]
    if any(len(results) > len(DEFAULT) for jobs in found.values() for results in jobs.values()):
        tables.append(report.table(["default / best setting", "each step read", "each tenth read"], slowdowns))
    return "\n\n".join(tables)


def format_worst_slowdown(jobs: dict[str, dict[str, Result]], figure: str) -> str:
    """The row whose default is slowest in times of its best setting."""
    slowdowns = {job: compute_slowdown(results, figure) for job, results in jobs.items()}
    worst = max(slowdowns, key=lambda job: slowdowns[job])
    return f"{slowdowns[worst]:.2f} ({worst})"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 rounds instead of 7")
    parser.add_argument("--only", default="", help="only the models whose name contains one of these, comma separated")
    parser.add_argument("--conditions", default="", help="only the conditions whose name contains one of these")
    parser.add_argument("--settings", default="", help=f"further contestants: {', '.join(SETTINGS)}")
    parser.add_argument("--json", type=Path, help="write all figures to this file as well")
    options = parser.parse_args()
    jobs = [job for job in JOBS if any(part in job.name for part in options.only.split(","))]
    conditions = [each for each in CONDITIONS if any(part in each.name for part in options.conditions.split(","))]
    settings = DEFAULT | {name: SETTINGS[name] for name in options.settings.split(",") if name}
    found: dict[str, dict[str, dict[str, Result]]] = {}
    print(report.setting(), flush=True)
    with tqdm(total=len(jobs) * len(conditions), unit="row") as bar:
        for condition in conditions:
            for job in jobs:
                bar.set_description(f"{condition.name}: {job.name}")
                results = measure(job, condition, settings, 2 if options.quick else 7)
                found.setdefault(condition.name, {})[job.name] = results
                bar.update()
            bar.write(f"\n{condition.name}\n\n{format_condition(found[condition.name])}\n")
    print(format_summary(found))
    if options.json:
        plain: Any = {c: {j: {n: vars(r) for n, r in rs.items()} for j, rs in js.items()} for c, js in found.items()}
        options.json.write_text(json.dumps({"setting": report.setting(), "found": plain}, indent=1))


if __name__ == "__main__":
    main()
