"""xla as a device of torch's device-generic tests: TORCH_TEST_DEVICES names this file.

torch.testing runs it among its own names when it makes the bases of such tests, and takes TEST_CLASS: a test that asks
for a device then runs for xla, too, in a class of its own (TestSomethingXLA, test_something_xla_float32).
"""

from __future__ import annotations

import torch

import torch_xla  # noqa: F401  # the device


class XLATestBase(DeviceTypeTestBase):  # type: ignore[name-defined]  # noqa: F821  # given by torch.testing
    device_type = "xla"

    @classmethod
    def get_all_devices(cls) -> list[str]:
        return [f"xla:{i}" for i in range(torch.xla.device_count())]  # type: ignore[attr-defined]

    @classmethod
    def get_primary_device(cls) -> str:
        return "xla:0"

    def _should_stop_test_suite(self) -> bool:
        return False  # nothing leaves a device in a state that the next test would find


TEST_CLASS = XLATestBase
