"""The examples with other libraries run as a user runs them, and learn."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from tests.clients import checks

LAUNCH = ["launch", "--tpu", "--num_processes", "2", "--main_training_function", "main"]
#: The library, what runs the example, devices, options, and the least accuracy.
EXAMPLES = {
    "lightning": ("lightning", [], 1, ["train_lightning.py", "--num_epochs=3"], 0.9),
    "lightning, two devices": ("lightning", [], 2, ["train_lightning.py", "--num_epochs=3", "--num_cores=2"], 0.9),
    "accelerate": ("accelerate", [], 1, ["train_accelerate.py", "--num_epochs=3"], 0.9),
    "accelerate, two devices": ("accelerate", LAUNCH, 2, ["train_accelerate.py", "--num_epochs=3"], 0.9),
    "transformers": ("transformers", [], 1, ["train_transformers.py", "--num_epochs=2", "--rows=512"], 0.75),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    library, launch, devices, (script, *options), least = EXAMPLES[name]
    importlib.import_module("sklearn")
    checks.library(library)
    path = str(checks.ROOT / "examples" / script)
    command = [checks.command_of(library), *launch, path] if launch else [sys.executable, path]
    environment = checks.ENVIRONMENT | {
        "PYTHONPATH": str(checks.ROOT),
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": str(devices),
    }
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found = re.findall(r"test accuracy ([\d.]+)", done.stdout)
    assert found and float(found[-1]) >= least, done.stdout
