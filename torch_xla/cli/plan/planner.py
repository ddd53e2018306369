"""Runs combinations that have no stored result, shows the progress, and returns the results of all."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from torch_xla.cli.plan.job import PlanJob
from torch_xla.cli.plan.process_pool import ProcessPool
from torch_xla.cli.plan.result_store import ResultStore, make_key
from torch_xla.cli.plan.variations import Combination

#: The module whose ``run`` compiles a job; it imports the engine, which this process does not.
WORKER = "torch_xla.cli.plan.worker"
#: Lines of the log of a failed process that become its reason.
_LINES = 3


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a plan, its arguments, and the step at which it ends."""

    path: str
    args: tuple[str, ...]
    module: bool
    steps: int

    def command(self, combination: Combination) -> list[str]:
        """Return what a result depends on: the target, the steps, the script and its arguments."""
        words = ["--module"] if self.module else []
        arguments = combination.script_arguments(self.args)
        return ["--target", combination.target, "--steps", str(self.steps), *words, self.path, *arguments]


@dataclass(eq=False)
class Planner:
    """Owns the progress bar and the temporary folder of the jobs for the length of its block.

    Each result is stored as soon as its process has ended, so that an interrupted plan loses only what was running.
    """

    script: Script
    store: ResultStore
    count: int
    fresh: bool = False  # whether stored results are ignored
    reused: int = 0
    results: dict[Combination, dict[str, Any]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="torch_xla-plan-"))
        self._bar = tqdm(total=0, desc="plan", unit="combination", file=sys.stderr, disable=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def compile(self, combinations: Sequence[Combination]) -> None:
        """Fill ``results`` for these combinations."""
        added = [each for each in combinations if each not in self.results]
        self._bar.total = len(self.results) + len(added)
        self._bar.refresh()
        jobs: dict[PlanJob, tuple[Combination, str]] = {}
        for combination in added:
            key = make_key(self.script.command(combination))
            stored = None if self.fresh else self.store.load(key)
            if stored is None:
                jobs[self._make_job(combination)] = combination, key
            else:
                self.reused += 1
                self._note(combination, stored)
        if not jobs:
            return
        with ProcessPool(WORKER, self.count) as pool:
            for job, code in pool.run(list(jobs)):
                combination, key = jobs[job]
                result, lasts = read_result(job, code)
                if lasts:
                    self.store.save(key, result)
                self._note(combination, result)
                shutil.rmtree(job.folder, ignore_errors=True)

    def _make_job(self, combination: Combination) -> PlanJob:
        script = self.script
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        arguments = tuple(combination.script_arguments(script.args))
        return PlanJob(combination.target, script.path, arguments, script.module, script.steps, folder)

    def _note(self, combination: Combination, result: dict[str, Any]) -> None:
        self.results[combination] = result
        self._bar.set_postfix_str(combination.label, refresh=False)
        self._bar.update()


def read_result(job: PlanJob, code: int) -> tuple[dict[str, Any], bool]:
    """Return the result of an ended process, and whether the next plan may use it again."""
    try:
        result: dict[str, Any] = json.loads(job.result.read_text(encoding="utf-8"))
        return result, bool(result.get("lasts", True))
    except (OSError, ValueError):
        pass
    program = f" {job.note.read_text()}" if job.note.exists() else ""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; the machine may be out of memory: use fewer --jobs" if name == "SIGKILL" else ""
        return {"error": f"the process was ended by {name}{program}{hint}"}, False
    log = job.log.read_text(errors="replace").strip().splitlines() if job.log.exists() else []
    return {"error": "; ".join([f"the process ended with exit code {code}{program}", *log[-_LINES:]])}, False
