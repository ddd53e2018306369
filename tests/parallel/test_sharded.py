"""Sharded tensors, training and checkpoints against eager CPU torch, on one device and on four."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs import capture_programs, sharded_programs
from tests.support.helpers import run_script

CASES = [(program, count) for program in sharded_programs.PROGRAMS for count in (1, 4)]
CASES += [(program, 4) for program in sharded_programs.ON_FOUR + capture_programs.ON_FOUR]
SWEPT = [
    pytest.param(program, 4, id=f"{program.__name__}-4", marks=pytest.mark.sweep) for program in sharded_programs.LONG
]


@pytest.mark.parametrize(
    ("program", "devices"), [*(pytest.param(p, n, id=f"{p.__name__}-{n}") for p, n in CASES), *SWEPT]
)
def test_values(program: Callable[[], None], devices: int) -> None:
    code = "from tests.programs import sharded_programs as s; "
    code += f"import {program.__module__} as p; s.switched_on(p.{program.__name__}); print('done')"
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices), TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
