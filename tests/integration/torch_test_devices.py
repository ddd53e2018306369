"""xla as a device of torch's device-generic tests: TORCH_TEST_DEVICES names this file.

torch.testing executes it in its namespace when it creates the bases of such tests, and uses TEST_CLASS: a test with a
device argument is then instantiated for xla, too, in a separate class (TestSomethingXLA, test_something_xla_float32).
"""

from __future__ import annotations

import torch

import torch_xla  # noqa: F401  # the device


class XLATestBase(DeviceTypeTestBase):  # type: ignore[name-defined]  # noqa: F821  # defined by torch.testing
    device_type = "xla"

    @classmethod
    def get_all_devices(cls) -> list[str]:
        return [f"xla:{i}" for i in range(torch.xla.device_count())]  # type: ignore[attr-defined]

    @classmethod
    def get_primary_device(cls) -> str:
        return "xla:0"

    def _should_stop_test_suite(self) -> bool:
        return False  # no test leaves a device in an unusable state


TEST_CLASS = XLATestBase
