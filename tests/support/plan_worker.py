"""Stands in for torch_xla.cli.plan.worker: the script's arguments decide how the process of a combination ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from torch_xla.cli.plan import result_store
from torch_xla.cli.plan.job import PlanJob


def make_report(seconds: float, required: int = 4 * 10**9, capacity: int = 16 * 10**9) -> dict[str, Any]:
    """Return the fields of an ahead-of-time report that a plan uses: one program, which ran in the latest step."""
    fits = required <= capacity
    memory = {
        "required_bytes": required, "capacity_bytes": capacity, "least_bytes": required // 2, "fits": fits,
        "arguments": required // 2, "temporaries": required // 2,
    }  # fmt: skip
    work = {"seconds": seconds, "flops": 3e12, "products": 2e12, "bytes": 1e9}
    parts = {"compute": 0.7 * seconds, "memory": 0.2 * seconds, "collectives": 0.1 * seconds}
    collective = {"kind": "all-gather", "group": 4, "count": 2.0, "bytes": 1e6, "seconds": 0.1 * seconds}
    program = {
        "step_runs": 1, "memory": memory, "work": work if fits else None, "parts": parts if fits else None,
        "collectives": [collective], "error": None,
        "expensive": [{"op": "Net/aten::mm", "name": "fusion", "seconds": seconds}],
    }  # fmt: skip
    target = {"chip": "TPU v5e", "chips": 4, "hbm_bytes": capacity, "peak_flops": 1e14}
    return {
        "target": target, "programs": [program], "fits": fits, "failure": None, "steps": 3, "chips_used": 4,
        "fallbacks": [], "reads": [],
    }  # fmt: skip


def run(job: PlanJob) -> None:
    """Act on ``--act``, and count this run in the script's folder."""
    values = dict(zip(job.args, job.args[1:], strict=False))
    action, folder = values.get("--act", "fits"), Path(job.script).parent
    with (folder / "runs.txt").open("a") as file:
        file.write(f"{os.getpid()} {job.target} {' '.join(job.args)}\n")
    if action == "sleep":
        time.sleep(300)
    if action == "crash":
        job.note.write_text("compiling program 2 (train.py:4)")
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "raise":
        job.log.write_text("starting\n\nValueError: mine\n")
        os._exit(1)
    if action == "missing":
        result: dict[str, Any] = {"error": "libtpu is not installed; pip install 'jax[tpu]'", "lasts": False}
    else:
        size = int(values.get("--batch_size", 8))
        large = 20 * 10**9 if action == "large" else 4 * 10**9
        result = {"report": make_report(size / 100, large), "seconds": 1.0, "cpu_seconds": 1.0}
    result["sources"] = result_store.hash_files([job.script])
    job.result.write_text(json.dumps(result))
