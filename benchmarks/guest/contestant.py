"""One training process of :mod:`benchmarks.guest`. It answers each line of standard input with a line of JSON.

    python -m benchmarks.guest.contestant "DLRM" xla:0

``first``: the first steps, until the loss of step 5 is read. ``train EVERY PAUSE``: milliseconds per step of one
measurement that reads the loss of each EVERY-th step and sleeps PAUSE seconds after each read. ``memory``: the peak
resident memory of the process in MB.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.guest.jobs import JOBS, Batch, GuestJob

FIRST_STEPS = 5
BATCHES = 4
#: Seconds. Twenty steps of a small model end before the caches of a core are warm again.
MINIMUM_TIME = 0.5


class Training:
    """A job on a device. It owns the model, the optimizer and some batches on the CPU for the life of the process.

    The device ``captured`` is xla:0, with the step in ``torch_xla.compile(replay=True)``.
    """

    def __init__(self, job: GuestJob, device: str) -> None:
        torch.manual_seed(0)
        self.job, self.is_captured = job, device == "captured"
        self.device = torch.device("xla:0" if self.is_captured else device)
        if self.device.type == "xla":
            import torch_xla
        self.model = job.model().to(self.device)
        self.optimizer = job.optimizer(self.model.parameters())
        self.batches: list[Batch] = [job.batch() for _ in range(BATCHES)]
        self.step_count = 0
        self.update = self._make_update()
        if self.is_captured:
            self.update = torch_xla.compile(self.update, replay=True)

    def train_step(self) -> torch.Tensor:
        """One step on the next batch; returns the loss on the device."""
        loss = self.update(*self.batches[self.step_count % BATCHES])
        self.step_count += 1
        if self.device.type == "xla" and not self.is_captured:
            import torch_xla

            torch_xla.sync()
        return loss.detach()

    def _make_update(self) -> Callable[..., torch.Tensor]:
        # Not a method: a capture guards what the step reaches, and step_count changes before each call.
        job, model, optimizer, device = self.job, self.model, self.optimizer, self.device

        def update(*batch: torch.Tensor) -> torch.Tensor:
            placed = tuple(tensor.to(device) for tensor in batch)
            optimizer.zero_grad()
            loss = job.loss(model, placed)
            loss.backward()
            optimizer.step()
            return loss

        return update

    def run_first_steps(self) -> dict[str, Any]:
        """Trains until programs are compiled; returns the seconds of the first step, of all, and of compilation."""
        start, process_start = time.perf_counter(), time.process_time()
        losses = [self.train_step().item()]
        first = time.perf_counter() - start
        losses += [self.train_step().item() for _ in range(FIRST_STEPS - 1)]
        total, cpu_seconds = time.perf_counter() - start, time.process_time() - process_start
        gc.collect()
        gc.disable()
        return {
            "first": first,
            "total": total,
            "cpu": cpu_seconds,
            "compile": self._read_compile_time(),
            "losses": losses,
        }

    def _read_compile_time(self) -> float:
        if self.device.type != "xla":
            return 0.0
        import torch_xla.debug.metrics as metrics

        found = metrics.metric_data("CompileTime")
        return found[1] / 1e9 if found else 0.0

    def measure(self, every: int, pause: float) -> float:
        """Milliseconds per step, pauses not counted: ``job.steps`` steps or more, for at least MINIMUM_TIME seconds."""
        busy, step = 0.0, 0
        begin = start = time.perf_counter()
        while step < self.job.steps or start - begin < MINIMUM_TIME:
            for _ in range(every):
                loss = self.train_step()
            loss.item()
            step += every
            busy += time.perf_counter() - start
            time.sleep(pause)
            start = time.perf_counter()
        return busy / step * 1e3


def read_peak_memory() -> float:
    """The peak resident memory of this process in MB, by the kernel's ``VmHWM``."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    name, device = sys.argv[1:]
    training = Training(next(job for job in JOBS if job.name == name), device)
    print("{}", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        answer: Any
        if command == "first":
            answer = training.run_first_steps()
        elif command == "train":
            answer = training.measure(int(arguments[0]), float(arguments[1]))
        else:
            answer = read_peak_memory()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
