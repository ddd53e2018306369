"""Scripts that choose their device with torch.accelerator train on xla as on the CPU, unedited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.helpers import run_script

PROGRAMS = Path(__file__).parents[1] / "programs" / "device_neutral"
#: Relative difference of losses after a few steps in float32.
TOLERANCE = 2e-3


def _losses(text: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line[:1].isdigit() or line.startswith("correct")]


def _run(command: list[str]) -> str:
    """Run with xla only where the script imports torch_xla."""
    variables = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=variables,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _check(expected: str, found: str) -> None:
    assert "device cpu" in expected and "device xla" in found
    assert len(_losses(expected)) >= 4
    assert _losses(found) == pytest.approx(_losses(expected), rel=TOLERANCE)


@pytest.mark.parametrize("name", ["mnist", "vae", "language_model", "gpt"])
def test_losses_equal_the_cpu(name: str) -> None:
    program = PROGRAMS / f"{name}.py"
    expected = _run([str(program)])
    # The script calls no torch_xla.sync(), and its printed losses change graphs: both are reported.
    found = run_script(
        f"import runpy, warnings, torch_xla\nwarnings.simplefilter('ignore')\nrunpy.run_path({str(program)!r})\n",
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    _check(expected, found.stdout)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["data_parallel", "fully_sharded"])
def test_losses_under_torchrun(name: str, processes: int, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with_xla = tmp_path / "with_xla.py"
    with_xla.write_text(f"import runpy\nimport torch_xla\nrunpy.run_path({str(program)!r})\n")
    _check(_run([*launcher, str(program)]), _run([*launcher, str(with_xla)]))
