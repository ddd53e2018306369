"""Compiles a sample of `make test-targets`, if the compilers of the targets are installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.support import scripts

#: Rule families that compile quickly: 20 s of CPU time for v5e.
SAMPLE = "test_rules_factory or test_rules_random"


def _needs(target: str, extra: str, *packages: str) -> pytest.ParameterSet:
    missing = not any(importlib.util.find_spec(package) for package in packages)
    reason = f"none of {', '.join(packages)} is installed: pip install 'jax[{extra}]'"
    return pytest.param(target, marks=pytest.mark.skipif(missing, reason=reason))


@pytest.mark.parametrize(
    "target",
    [_needs("v5e", "tpu", "libtpu"), _needs("h100", "cuda12", "jax_cuda12_plugin", "jax_cuda13_plugin")],
)
def test_a_sample_of_rules_compiles(target: str) -> None:
    """Rules of two families compile; EXPECTED in compile_for_targets.py lists the exceptions."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.tools.compile_for_targets",
            target,
            "--",
            "-n",
            "0",
            "-k",
            SAMPLE,
            "-p",
            "no:cacheprovider",
        ],
        cwd=scripts.ROOT,
        env=scripts.environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert re.search(r"\| (tpu|gpu) \| \d\d+ \| \d{3,} \| \d+ \|", done.stdout), done.stdout[-2000:]
