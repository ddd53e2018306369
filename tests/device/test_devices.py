"""Device arguments: the device of an op's result, and errors for devices that do not exist."""

from __future__ import annotations

import pytest

from tests.programs import device_programs
from tests.support.helpers import run_script


@pytest.mark.parametrize("name", [program.__name__ for program in device_programs.PROGRAMS])
def test_two_devices(name: str) -> None:
    code = f"from tests.programs import device_programs; device_programs.{name}(); print('done')"
    quiet = {"TORCH_XLA_WARN_FALLBACK": "0", "TORCH_XLA_EXPLAIN_RECOMPILATIONS": "0"}
    done = run_script(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2", **quiet)
    assert done.stdout.endswith("done\n")
