"""libtpu on a host without a TPU: jax does not load it, so it prints nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import ROOT, run_script

#: Prints whether jax has tried to start a TPU backend, and the devices.
PROGRAM = """
import sys
import torch, torch_xla
from jax._src import xla_bridge
from torch_xla._engine.device import hardware_detection
hardware_detection.tpu_count = lambda: {chips}
try:
    print(torch_xla.devices())
except RuntimeError as error:
    print(str(error).splitlines()[0])
print("libtpu.so" in str(xla_bridge._backend_errors.get("tpu")))
"""


@pytest.mark.parametrize(
    ("chips", "device", "devices", "probed"),
    [
        (0, "", "[device(type='xla', index=0)]", False),
        (0, "CPU", "[device(type='xla', index=0)]", False),
        (0, "TPU", "PJRT_DEVICE requests TPU, but jax has no tpu backend", True),
        (4, "", "[device(type='xla', index=0)]", True),
    ],
)
def test_libtpu(chips: int, device: str, devices: str, probed: bool, tmp_path: Path) -> None:
    (tmp_path / "libtpu.py").write_text("def get_library_path(): return '/no/such/libtpu.so'\n")
    path = f"{tmp_path}:{ROOT}"
    done = run_script(PROGRAM.format(chips=chips), fresh="libtpu is found by jax's import", PJRT_DEVICE=device,
                      PYTHONPATH=path)  # fmt: skip
    found, tried = done.stdout.splitlines()
    assert found.startswith(devices) and tried == str(probed)
