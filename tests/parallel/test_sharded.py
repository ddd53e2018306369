"""Sharded tensors, training and checkpoints against eager CPU torch, on one device and on four."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs import capture_programs, sharded_programs
from tests.support.helpers import run_script

CASES = [(program, 4) for program in sharded_programs.PROGRAMS + sharded_programs.ON_FOUR + capture_programs.ON_FOUR]
#: A mesh of one device runs the same code with less of it.
SWEPT = [(program, 1) for program in sharded_programs.PROGRAMS] + [(program, 4) for program in sharded_programs.LONG]


@pytest.mark.parametrize(
    ("program", "devices"),
    [
        pytest.param(program, count, id=f"{program.__name__}-{count}", marks=marks)
        for cases, marks in ((CASES, []), (SWEPT, [pytest.mark.sweep]))
        for program, count in cases
    ],
)
def test_values(program: Callable[[], None], devices: int) -> None:
    code = "from tests.programs import sharded_programs as s; "
    code += f"import {program.__module__} as p; s.switched_on(p.{program.__name__}); print('done')"
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices), TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
