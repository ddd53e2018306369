"""Compile the programs of a script for an accelerator: ``python -m torch_xla.aot``; arguments.py has its help."""

from __future__ import annotations

import argparse
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from torch_xla._engine.aot import arguments, cache_export, program_collector, targets
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import abstract_device, devices
from torch_xla.aot import report_data, report_html, report_text
from torch_xla.distributed._termination import SignalForwarder

_NOTE = "compiling.txt"
#: Interval in seconds at which the end of a grace period is checked.
_TICK = 1.0


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code; argparse exits with 2 for wrong arguments.

    Args:
      argv: arguments after the command's name; default: those of the process.
    """
    options = arguments.parse("python -m torch_xla.aot", argv)
    if options.within is None:
        return _run_in_subprocess(argv)
    try:
        target = targets.get_target(options.target)
    except (ValueError, targets.MissingCompilerError) as error:
        print(f"torch_xla.aot: {error}", file=sys.stderr)
        return 2
    return _run(options, target)


def _run_in_subprocess(argv: Sequence[str]) -> int:
    """Run the command in a subprocess, because a compiler that crashes ends its process.

    SIGTERM, which job managers send only to this process, is forwarded; this process ends after the subprocess.
    """
    children: list[subprocess.Popen[bytes]] = []

    def forward() -> None:
        for child in children:
            child.terminate()

    # The forwarder is the outer context: it ends this process after the folder has been removed.
    with SignalForwarder(forward) as forwarder, tempfile.TemporaryDirectory(prefix="torch_xla-aot-") as folder:
        children.append(subprocess.Popen([sys.executable, "-m", "torch_xla.aot", arguments.WITHIN, folder, *argv]))
        if forwarder.deadline is not None:  # the signal arrived before the process was in the list
            forward()
        code = _wait(children[0], forwarder)
        note = Path(folder, _NOTE)
        if code >= 0:
            return code
        if forwarder.deadline is not None or not note.exists():
            return 128 - code
        print(f"torch_xla.aot: the compiler crashed (signal {-code}) {note.read_text()}", file=sys.stderr)
        return 1


def _wait(child: subprocess.Popen[bytes], forwarder: SignalForwarder) -> int:
    """Wait for the process. Return its exit code; kill it at the end of its grace period."""
    while True:
        try:
            return child.wait(_TICK)
        except subprocess.TimeoutExpired:
            if forwarder.deadline is not None and time.monotonic() > forwarder.deadline:
                child.kill()
        except KeyboardInterrupt:  # the child received it as well, and decides
            continue


def _run(options: argparse.Namespace, target: Target) -> int:
    collector, data = analyze_script(options, target, options.within / _NOTE)
    if options.fill_cache is not None:
        _write_to_cache(options.fill_cache, collector)
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(report_html.render_html(data), encoding="utf-8")
    sys.stdout.write(report_text.render_text(data))
    return exit_code(data)


def analyze_script(
    options: argparse.Namespace, target: Target, note: Path, *, ends_at_error: bool = False
) -> tuple[program_collector.ProgramCollector, dict[str, Any]]:
    """Run the script in this process, compile its programs, and return them with the report.

    Args:
      options: script, args, module, steps and abstract, as arguments.py parses them.
      target: the devices to compile for.
      note: a file that names the program that is being compiled, for the case that the compiler crashes.
      ends_at_error: end at the first program that does not fit or cannot be compiled.
    """
    emulate_on_cpu(target)
    progress = functools.partial(_compile_progress, target, note)
    collector = program_collector.ProgramCollector(target, options.steps, progress, ends_at_error)
    if options.abstract:
        abstract_device.enable(collector.result_shardings)
    failure = _run_script(options, collector)
    with suppress(program_collector.UnusableProgram):
        for seen in collector.programs:
            collector.compile(seen)
    return collector, report_data.build_report(collector, failure, options.script)


@contextmanager
def _compile_progress(
    target: Target, note: Path, seen: program_collector.CollectedProgram
) -> Iterator[Callable[[Path], None]]:
    """Write the program that is compiled within the block, and the path of its StableHLO, to ``note``."""
    print(f"compiling program {seen.number} for {target.name}", file=sys.stderr)

    def begun(file: Path) -> None:
        note.write_text(f"compiling program {seen.number} ({seen.line}); its StableHLO is in {file}")

    yield begun
    note.unlink(missing_ok=True)


def _write_to_cache(folder: Path, collector: program_collector.ProgramCollector) -> None:
    """Write the executables to a cache folder; report those that cannot be written, and continue."""
    for seen in collector.programs:
        if seen.compiled is None:
            continue
        try:
            cache_export.write_to_cache(folder, seen.compiled)
        except Exception as error:  # of the compiler, jax or the file system
            print(f"torch_xla.aot: cannot write program {seen.number} to {folder}: {error}", file=sys.stderr)


def exit_code(data: dict[str, Any]) -> int:
    """Return the exit code of the command for a report."""
    if not data["fits"]:
        return 3
    return 1 if data["failure"] or any(row["error"] for row in data["programs"]) else 0


def emulate_on_cpu(target: Target) -> None:
    """Run the script on CPU devices, with the device type and number of the target."""
    jax.config.update("jax_platforms", "cpu")
    settings.export("PJRT_DEVICE", "CPU")
    devices.emulate_device(target.platform, target.devices[0].device_kind)
    if "CPU_NUM_DEVICES" not in os.environ:
        settings.export("CPU_NUM_DEVICES", str(len(target.devices)))


def _run_script(options: argparse.Namespace, collector: program_collector.ProgramCollector) -> str | None:
    """Run the script to its end or to the last requested step; return a message if it failed, else None."""
    script = options.script
    before = sys.argv[:], sys.path[:]
    sys.argv = [script, *options.args]
    try:
        with collector.collecting():
            if options.module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(script))
                runpy.run_path(script, run_name="__main__")
    except (program_collector.StepLimitReached, program_collector.UnusableProgram):
        return None
    except SystemExit as end:
        return None if end.code in (None, 0) else f"the script ended with {end.code!r}"
    except BaseException as error:
        traceback.print_exc()
        return f"the script raised {type(error).__name__}: {error}"
    finally:
        sys.argv, sys.path[:] = before
    return None
