"""Runs tests on a GPU: ``make test-gpu``.

    python -m tests.tools.gpu_tests [arguments of pytest]

Needs NVIDIA's driver and jax's CUDA plugin. Runs the doctor, the smoke test, the demo, and in as many processes as
there are cores, test_gpu.py, the operator sample, flash attention and training parity, with the CPU as the oracle. All
processes share the GPU, so none reserves its memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/integration/test_smoke.py",
    "tests/device/test_gpu.py",
    "tests/ops/test_ops_sample.py",
    "tests/kernels/test_flash_attention.py",
    "tests/integration/test_training_parity.py",
)


def make_variables() -> dict[str, str]:
    """Return the variables of a process whose device is the GPU, which does not reserve its memory."""
    return os.environ | {
        "PJRT_DEVICE": "CUDA",
        "PYTHONPATH": str(ROOT),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def run_python(arguments: list[str]) -> int:
    """Run Python in the checkout on the GPU; return its exit code."""
    print("$ python", *arguments, flush=True)
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=make_variables()).returncode


def main(arguments: list[str]) -> int:
    """Run all; return 1 if one failed."""
    codes = [
        run_python(["-m", "torch_xla", "doctor"]),
        run_python(["-m", "pytest", "-q", TESTS[0]]),
        run_python(["examples/train_digits.py", "--check"]),
        run_python(["-m", "pytest", "-q", "-n", "auto", *TESTS[1:], *arguments]),
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
