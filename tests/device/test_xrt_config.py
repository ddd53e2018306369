"""The legacy (XRT) device configuration works for this machine, and raises for a remote one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import hardware_detection, xrt_config
from torch_xla._internal import tpu

CPU_0 = "CPU:0;/job:localservice/replica:0/task:0/device:XLA_CPU:0"
CPU_1 = "CPU:1;/job:localservice/replica:0/task:0/device:XLA_CPU:1"
HERE = "localservice:0;grpc://localhost:40934"
AWAY = "tpu_worker:0;grpc://10.1.2.3:8470"
TPU_AWAY = "TPU:0;/job:tpu_worker/replica:0/task:0/device:TPU:0"
VARIABLES = ("XRT_TPU_CONFIG", "XRT_DEVICE_MAP", "XRT_WORKERS", "COLAB_TPU_ADDR", "PJRT_DEVICE", "CPU_NUM_DEVICES")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty home folder, and nothing of the sort in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings.reload()
    yield tmp_path
    settings.reload()


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


WORKS = [
    ({}, None),
    ({"XRT_TPU_CONFIG": "localservice;0;localhost:51011"}, ("TPU", 1)),
    ({"XRT_TPU_CONFIG": "c_localservice;0;10.0.0.7:51011"}, ("TPU", 1)),
    ({"XRT_TPU_CONFIG": "tpu_worker;0;127.0.0.1:8470|tpu_worker;1;localhost:8471"}, ("TPU", 1)),
    ({"XRT_DEVICE_MAP": CPU_0, "XRT_WORKERS": HERE}, ("CPU", 1)),
    ({"XRT_DEVICE_MAP": f"{CPU_0}|{CPU_1}", "XRT_WORKERS": HERE}, ("CPU", 2)),
    ({"XRT_DEVICE_MAP": CPU_0}, ("CPU", 1)),
    ({"XRT_DEVICE_MAP": CPU_0, "XRT_WORKERS": f"{HERE}|{AWAY}"}, ("CPU", 1)),  # the one elsewhere is not used
    ({"XRT_DEVICE_MAP": CPU_0, "CPU_NUM_DEVICES": "3"}, ("CPU", 3)),
    ({"XRT_DEVICE_MAP": CPU_0.replace("CPU", "GPU")}, ("CUDA", 1)),
    ({"XRT_WORKERS": HERE}, None),
    ({"PJRT_DEVICE": "CPU", "XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470"}, ("CPU", 1)),
    ({"PJRT_DEVICE": "tpu"}, ("TPU", 1)),
    ({"PJRT_DEVICE": "CPU", "COLAB_TPU_ADDR": "10.0.0.2:8470"}, ("CPU", 1)),
    ({"COLAB_TPU_ADDR": "grpc://localhost:8470"}, None),
]


@pytest.mark.parametrize(("values", "expected"), WORKS)
def test_what_it_asks_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], expected: tuple[str, int] | None
) -> None:
    set_all(monkeypatch, values)
    wanted = hardware_detection.requested_device()
    assert (wanted and (wanted.kind, wanted.count)) == expected
    if expected and expected[0] == "CPU":
        assert tpu.num_available_devices() == expected[1]


ELSEWHERE = [
    ({"XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470"}, "XRT_TPU_CONFIG", "10.0.0.2:8470"),
    ({"XRT_DEVICE_MAP": TPU_AWAY, "XRT_WORKERS": AWAY}, "XRT_WORKERS", "10.1.2.3:8470"),
    ({"XRT_WORKERS": AWAY}, "XRT_WORKERS", "10.1.2.3:8470"),
    ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "COLAB_TPU_ADDR", "10.0.0.2:8470"),
]


@pytest.mark.parametrize(("values", "source", "endpoint"), ELSEWHERE)
def test_a_server_elsewhere_is_an_error_that_says_what_replaced_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], source: str, endpoint: str
) -> None:
    set_all(monkeypatch, values)
    with pytest.raises(RuntimeError, match=f"^{source} names a device behind an XRT server at {endpoint}") as caught:
        xrt_config.parse_xrt_config()
    assert all(word in str(caught.value) for word in ("PJRT_DEVICE=TPU", "xla_dist", "PJRT_DEVICE=CPU", "unset"))
    with pytest.raises(ValueError, match="XRT servers no longer exist"):  # the only kind of error Lightning expects
        tpu.num_available_devices()


@pytest.mark.parametrize(
    "values", [{"XRT_TPU_CONFIG": "here"}, {"XRT_DEVICE_MAP": "CPU:0"}, {"XRT_WORKERS": "localservice;grpc:x"}]
)
def test_text_that_cannot_be_read(home: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    set_all(monkeypatch, values)
    (name,) = values
    with pytest.raises(ValueError, match=f"^{name}: '{values[name]}' does not have the form "):
        xrt_config.parse_xrt_config()


def test_the_file_in_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / ".pytorch_tpu.conf"
    file.write_text("# mine\n\nworker: tpu_worker localhost:8470\n")
    assert xrt_config.parse_xrt_config() == xrt_config.DeviceRequest("TPU", 1, str(file))
    file.write_text("worker: tpu_worker 10.0.0.2:8470\n")
    with pytest.raises(RuntimeError, match=rf"^{file} names a device .* at 10\.0\.0\.2:8470.* remove that file"):
        xrt_config.parse_xrt_config()
    monkeypatch.setenv("XRT_DEVICE_MAP", CPU_0)
    settings.reload()
    assert xrt_config.parse_xrt_config() == xrt_config.DeviceRequest("CPU", 1, "XRT_DEVICE_MAP")
    monkeypatch.delenv("XRT_DEVICE_MAP")
    file.write_text("")
    settings.reload()
    assert xrt_config.parse_xrt_config() is None


def test_two_devices_as_the_readme_of_2019_has_them() -> None:
    out = run_script(
        """
        import torch, torch_xla
        import torch_xla.runtime as xr
        import torch_xla.core.xla_model as xm
        print(xm.get_xla_supported_devices(), xr.device_type())
        x = torch.ones(2, device="xla:1", requires_grad=True)
        (x * 2).sum().backward()
        print(x.grad.tolist())
        """,
        XRT_DEVICE_MAP=f"{CPU_0}|{CPU_1}",
        XRT_WORKERS=HERE,
    )
    assert out.stdout == "['xla:0', 'xla:1'] CPU\n[2.0, 2.0]\n"
