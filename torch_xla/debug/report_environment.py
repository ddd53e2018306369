"""Describe the process of a report: script, command, versions, device; and quote source lines."""

from __future__ import annotations

import linecache
import os
import platform
import shlex
import sys
import time
from typing import Any

import jax
import jaxlib
import torch

import torch_xla
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.device import devices

_LONGEST_SOURCE = 60  # characters


def describe_process(command: str | None = None) -> dict[str, Any]:
    """Return script, command, date (local time), versions by package, device and cpu of this process.

    ``command`` replaces the command line of the process, for a process that another one has started.
    """
    script, own_command = _script_and_command()
    return {
        "script": script,
        "command": own_command if command is None else command,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "versions": {
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "Python": platform.python_version(),
        },
        "device": _device_label(),
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores",
    }


def _script_and_command() -> tuple[str, str]:
    if "ipykernel" in sys.modules:  # its command line names a file of Jupyter
        return "(notebook)", "(notebook)"
    arguments = [os.path.basename(sys.orig_argv[0]), *sys.orig_argv[1:]] if sys.orig_argv else []
    script = shorten_paths(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else "(interactive)"
    return script, shorten_paths(shlex.join(arguments))


def environment_lines(environment: dict[str, Any]) -> list[str]:
    """Return the description as lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return [
        f"{environment['script']}, {environment['date']}",
        f"command: {environment['command']}",
        f"device: {environment['device']}; CPU: {environment['cpu']}",
        versions,
    ]


def source_line(line: str) -> str:
    """Return the source of ``file.py:12``, cropped; an empty string if it cannot be read."""
    path, _, number = line.rpartition(":")
    text = linecache.getline(path, int(number)).strip() if number.isdigit() else ""
    return text if len(text) <= _LONGEST_SOURCE else f"{text[: _LONGEST_SOURCE - 3]}..."


def _device_label() -> str:
    if not devices.backend_started():
        return "not started"
    device = devices.device(0)
    return f"{devices.count()} × {device.platform.upper()} ({device.device_kind})"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = next((row for row in file if row.startswith("model name")), "")
    except OSError:
        found = ""
    return found.partition(":")[2].strip() or platform.machine()
