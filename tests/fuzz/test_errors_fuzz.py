"""Invalid calls never end the process, and raise the exception that the CPU raises."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import scripts

FUZZ = Path(__file__).parent / "fuzz_errors.py"

#: (operator, part of what the CPU said): why xla may say something else.
DIFFERENT: dict[tuple[str, str], str] = {
    ("*", "not implemented for"): "the CPU has no kernel for a dtype that XLA has",
    ("*", "is not supported for complex"): "the same, in other words",
    ("*", "MKL FFT error"): "an empty transform: a limit of a library that is not used",
    ("*", "MKL-DNN"): "a limit of a library that is not used",
    ("*", "high must be a scalar tensor and on CPU"): "xla reads the bound from the device",
    ("*", "random_ expects 'from' to be less than 'to'"): "torch checks it in the kernel of each device",
    ("*", "to be in [0, 1], but got p="): "values are checked by the kernels of each device",
    ("*", "uniform_ expects"): "values are checked by the kernels of each device",
    ("*multinomial", ""): "trying it on the CPU first would draw from the CPU's generator",
    ("*binomial", ""): "trying it on the CPU first would draw from the CPU's generator",
    ("*bernoulli_", ""): "trying it on the CPU first would draw from the CPU's generator",
    ("torch.binary_cross_entropy_with_logits", ""): "made of ops that check nothing in it",
    ("torch.nanmean", "on CPU does not support"): "made of ops that XLA has for complex numbers",
    ("Tensor.rename_", "ok"): "torch 2.11 has named tensors on some types of devices only",
    ("*nan_to_num_", "ok"): "torch's decomposition knows no complex numbers",
}


def _reason(name: str, said: str) -> str | None:
    for (operator, part), reason in DIFFERENT.items():
        fits = name.endswith(operator.removeprefix("*")) if operator.startswith("*") else name == operator
        if fits and (said == part if part == "ok" else part in said):
            return reason
    return None


@pytest.mark.parametrize("first", [0])
def test_refusals_are_those_of_the_cpu(first: int) -> None:
    done = subprocess.run(
        [*scripts.PYTHON, str(FUZZ), str(first), "3", "3"],
        env=os.environ | scripts.server_variables() | {"TORCH_XLA_WARN_FALLBACK": "0"},
        capture_output=True,
        text=True,
    )
    *lines, last = done.stdout.splitlines() or [""]
    calls = [line for line in done.stderr.splitlines() if line.startswith("> ")]
    assert done.returncode == 0 and last == "done", f"died ({done.returncode}) in {calls[-1:]}\n{done.stderr[-2000:]}"
    assert len(calls) > 1000 and len({line.split()[1] for line in calls}) > 250
    unexplained = [line for line in map(json.loads, lines) if _reason(line[0], line[2]) is None]
    assert unexplained == []
