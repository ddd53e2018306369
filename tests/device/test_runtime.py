"""``torch_xla.runtime``: world sizes, ordinals, device types."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.helpers import run_script
from torch_xla._engine.device import hardware_detection, xrt_config
from torch_xla._engine.job import replicas
from torch_xla._internal import tpu


def test_a_job_of_one() -> None:
    assert torch_xla.runtime is xr
    assert (xr.world_size(), xr.process_count(), xr.local_process_count()) == (1, 1, 1)
    assert (xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xr.host_index()) == (0, 0, 0, 0)
    count = len(xm.get_xla_supported_devices() or [])
    assert xr.addressable_device_count() == xr.local_device_count() == xr.global_device_count() == count
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == count
    assert xr.using_pjrt() and xr.is_bf16_supported() and not xr.is_spmd()
    assert xr.get_master_ip() == "127.0.0.1" and xr.xla_device(0) == torch.device("xla:0")
    assert xr.device_type() == xm.xla_device_hw("xla:0")


def test_threads_are_replicas() -> None:
    with replicas.replicate([0, 1, 2], 1):
        assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.process_count()) == (3, 1, 1, 1)
    assert xr.world_size() == 1


def test_attributes() -> None:
    attributes = xr.runtime_device_attributes("xla:0")
    assert attributes["id"] == 0 and attributes["device_kind"] == xm.xla_device_kind("xla:0")
    assert xr.global_runtime_device_attributes()[0] == attributes
    with pytest.raises(RuntimeError, match=r"^runtime_device_attributes: xla:9 does not exist"):
        xr.runtime_device_attributes("xla:9")


def test_programs_in_memory() -> None:
    before = xr.get_num_cached_compilation_graph()
    (torch.ones(3, 1, 2, device="xla") * 3.25).cpu()
    assert xr.get_num_cached_compilation_graph() == before + 1


def test_spmd_does_not_choose_by_itself() -> None:
    with pytest.raises(NotImplementedError, match=r"^use_spmd\(auto=True\): mark the inputs"):
        xr.use_spmd(auto=True)
    assert not xr.is_spmd()


def test_another_kind_of_device_comes_too_late() -> None:
    xm.xla_device()
    other = "TPU" if xr.device_type() == "CPU" else "CPU"
    with pytest.raises(RuntimeError, match=f"^set_device_type: devices of type {xr.device_type()} are in use; select"):
        xr.set_device_type(other)


@pytest.mark.parametrize(("chips", "kind", "count"), [(4, "TPU", 4), (4, "", 4), (4, "CUDA", 0), (0, "", 0)])
def test_devices_of_a_tpu(monkeypatch: pytest.MonkeyPatch, chips: int, kind: str, count: int) -> None:
    monkeypatch.setattr(hardware_detection, "tpu_count", lambda: chips)
    monkeypatch.setattr(
        hardware_detection,
        "requested_device",
        lambda: xrt_config.DeviceRequest(kind, 1, "PJRT_DEVICE") if kind else None,
    )
    assert tpu.num_available_devices() == count and tpu.num_available_chips() == chips


PROBE = """
import os
import torch, torch_xla, jax
import torch_xla.runtime as xr
import jax._src.xla_bridge as bridge
from torch_xla._internal import tpu
kind = xr.device_type()
devices = tpu.num_available_devices()
world = xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xr.host_index()
print(kind, devices, world, dict(bridge._backends), tpu.get_tpu_env())
"""


def test_what_starts_no_backend() -> None:
    nothing = run_script(PROBE).stdout
    assert nothing in (
        f"{kind} 0 (1, 0, 0, 0, 0) {{}} {{'ACCELERATOR_TYPE': '{kind}-1'}}\n" for kind in ("CPU", "CUDA")
    )
    asked = run_script(PROBE, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4", TPU_ACCELERATOR_TYPE="v4-8").stdout
    assert asked == "CPU 4 (1, 0, 0, 0, 0) {} {'ACCELERATOR_TYPE': 'v4-8'}\n"


def test_set_device_type_and_a_job_of_six_on_two_machines() -> None:
    out = run_script(
        PROBE
        + """
xr.set_device_type("cpu")
print(os.environ["PJRT_DEVICE"], xr.device_type(), tpu.num_available_devices(), dict(bridge._backends))
""",
        RANK="4", WORLD_SIZE="6", LOCAL_RANK="1", LOCAL_WORLD_SIZE="3", MASTER_ADDR="localhost", MASTER_PORT="1",
    )  # fmt: skip
    first, second = out.stdout.splitlines()
    assert first in (f"{kind} 0 (6, 4, 1, 4, 1) {{}} {{'ACCELERATOR_TYPE': '{kind}-1'}}" for kind in ("CPU", "CUDA"))
    assert second == "cpu CPU 1 {}"
