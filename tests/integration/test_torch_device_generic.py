"""Run torch's device-generic tests for xla: TORCH_TEST_DEVICES names torch_test_devices.py."""

from __future__ import annotations

import re

import pytest

from tests.support.helpers import ROOT, run_script

#: Runs tests of device_generic.py by name; prints the names of those that ran.
CODE = """
    import sys, unittest
    from tests.support import fast_compile_flags
    from tests.integration import device_generic

    class Names(unittest.TextTestResult):
        def startTest(self, test):
            super().startTest(test)
            print(test.id().rpartition("device_generic.")[2])

    unittest.main(device_generic, argv=["tests", *{names!r}], testRunner=unittest.TextTestRunner(resultclass=Names))
"""


def run(*names: str) -> tuple[set[str], str]:
    """Return the names of the tests that ran, and unittest's summary. Each test passed or was skipped."""
    options = [part for name in names for part in ("-k", name)]
    device = str(ROOT / "tests" / "integration" / "torch_test_devices.py")
    done = run_script(CODE.format(names=options), check=False, TORCH_TEST_DEVICES=device)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return set(done.stdout.split()), done.stderr


def test_classes_are_instantiated_for_xla() -> None:
    """torch instantiates them without patches: dtypes, parameters, lists of devices, errors, skips."""
    ran, said = run("TestTensors")
    dtypes = ("float32", "float64", "int64", "complex64", "bool")
    xla = {f"TestTensorsXLA.test_make_and_compare_xla_{dtype}" for dtype in dtypes}
    xla |= {f"TestTensorsXLA.test_cumsum_reverse_{reverse}_xla_float32" for reverse in (False, True)}
    xla |= {
        f"TestTensorsXLA.test_{name}_xla" for name in ("size_mismatch", "devices", "cpu_only", "other_devices_only")
    }
    assert ran == xla | {name.replace("XLA", "CPU").replace("_xla", "_cpu") for name in xla}
    assert "skipped=2" in said, "the tests for the CPU only, and for devices other than xla"


def test_tables_of_torch() -> None:
    ran, _ = run("test_op_", "test_optimizer_Adam", "test_module_nn_Linear", "test_module_nn_LSTM_")
    assert {name.partition("_")[0] for name in ran} == {"TestTablesXLA.test"} and len(ran) >= 12


@pytest.mark.sweep
def test_all_modules_and_optimizers() -> None:
    ran, said = run("TestTables")
    assert len(ran) > 140
    assert int(re.findall(r"skipped=(\d+)", said)[0]) < 10, "lazy modules, and sparse gradients"
