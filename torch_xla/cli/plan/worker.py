"""The process of one combination: runs the script without values, compiles its programs and writes the report.

The fork server imports this module, and with it torch, jax and the engine, once for all combinations of a plan.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import sysconfig
import threading
import time
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

from torch_xla._engine.aot import targets
from torch_xla.aot import command
from torch_xla.cli.plan import result_store
from torch_xla.cli.plan.job import PlanJob

_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def run(job: PlanJob) -> None:
    """Compile a combination, and write ``job.result``; the output of the script and the compiler goes to ``job.log``.

    A process without a result file was killed, or its compiler crashed: ``job.note`` then names the program.
    """
    multiprocessing.set_start_method(None, force=True)  # the script's default, rather than that of this process
    threading.Thread(target=_end_with_parent, name="torch_xla plan: parent", daemon=True).start()
    _redirect_output(job.log)
    start, cpu = time.perf_counter(), time.process_time()
    result: dict[str, Any] = compile_combination(job)
    result |= {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    result["sources"] = result_store.hash_files(source_files(job))
    part = job.result.with_suffix(".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(job.result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the script are not needed any more


def compile_combination(job: PlanJob) -> dict[str, Any]:
    """Return ``{"report": ...}``, or ``{"error": ..., "lasts": ...}`` for a target that cannot be used.

    ``lasts``: whether the error remains when the missing compiler is installed.
    """
    try:
        target = targets.get_target(job.target)
    except targets.MissingCompilerError as error:
        return {"error": str(error), "lasts": False}
    except ValueError as error:
        return {"error": str(error), "lasts": True}
    options = argparse.Namespace(
        script=job.script, args=list(job.args), module=job.module, steps=job.steps, abstract=True
    )
    _, report = command.analyze_script(options, target, job.note, ends_at_error=True)
    return {"report": report}


def source_files(job: PlanJob) -> list[str]:
    """Return the files of the script and of the loaded modules that belong to no installed package."""
    spec = importlib.util.find_spec(job.script) if job.module else None
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files += [spec.origin if spec else None if job.module else job.script]
    found = {os.path.abspath(file) for file in files if isinstance(file, str)}
    return sorted(file for file in found if not file.startswith(_INSTALLED) and "site-packages" not in file)


def _end_with_parent() -> None:
    """End this process when the process of the plan has ended, however it ended."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _redirect_output(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
