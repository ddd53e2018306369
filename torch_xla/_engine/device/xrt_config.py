"""The legacy (XRT) device configuration of 2019 to 2023: XRT_TPU_CONFIG, XRT_DEVICE_MAP with XRT_WORKERS,
~/.pytorch_tpu.conf, COLAB_TPU_ADDR.

It named servers that ran programs for clients. Its settings for this machine still apply; a remote server raises an
error that names the replacement. PJRT_DEVICE takes precedence over all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from torch_xla._engine.base.settings import settings

_REMOTE = (
    "{source} names a device behind an XRT server at {endpoint}. XRT servers no longer exist: a program runs on the "
    "machine that has the device. On each machine of a TPU run `PJRT_DEVICE=TPU COMMAND` (log in with `gcloud compute "
    "tpus tpu-vm ssh NAME`); `python -m torch_xla.distributed.xla_dist --tpu=NAME -- COMMAND` does so on all machines "
    "of a pod. For this machine's CPU set PJRT_DEVICE=CPU. Then {cure}."
)

_KINDS = {"CPU": "CPU", "GPU": "CUDA", "CUDA": "CUDA", "TPU": "TPU"}
_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"}
_LOCAL_WORKERS = {"localservice", "c_localservice"}

_TPU_WORKER = re.compile(r"(?P<worker>[\w.-]+);(?P<task>\d+);(?:grpc://)?(?P<endpoint>[^;|/]+:\d+)")
_DEVICE = re.compile(
    r"(?P<kind>CPU|GPU|CUDA|TPU):(?P<n>\d+);/job:(?P<job>[\w.-]+)/replica:\d+/task:(?P<task>\d+)/device:\w+:\d+"
)
_WORKER = re.compile(r"(?P<worker>[\w.-]+):(?P<task>\d+);(?:grpc://)?(?P<endpoint>[^;|/]+:\d+)")
_CONF = re.compile(r"worker:\s*(?P<worker>[\w.-]+)\s+(?:grpc://)?(?P<endpoint>[^\s/]+:\d+)")


@dataclass(frozen=True)
class DeviceRequest:
    """The requested device type (CPU, CUDA or TPU), the number of CPU devices, and the variable that requests it."""

    kind: str
    count: int
    source: str


def parse_xrt_config() -> DeviceRequest | None:
    """Return the device request of the legacy configuration; None if there is none.

    Raises RuntimeError for a device on another machine, ValueError for invalid text.
    """
    if settings.XRT_TPU_CONFIG:
        return _tpu_config(settings.XRT_TPU_CONFIG)
    if settings.XRT_DEVICE_MAP or settings.XRT_WORKERS:
        return _device_map(settings.XRT_DEVICE_MAP, settings.XRT_WORKERS)
    found = _conf_file(Path("~/.pytorch_tpu.conf").expanduser())
    if found is None:
        _check_colab(settings.COLAB_TPU_ADDR)
    return found


def _tpu_config(text: str) -> DeviceRequest:
    for part in _parts("XRT_TPU_CONFIG", text, _TPU_WORKER, "localservice;0;localhost:51011"):
        if part["worker"] not in _LOCAL_WORKERS and not _is_local(part["endpoint"]):
            _remote("XRT_TPU_CONFIG", part["endpoint"], "unset XRT_TPU_CONFIG")
    return DeviceRequest("TPU", 1, "XRT_TPU_CONFIG")


def _device_map(devices: str, workers: str) -> DeviceRequest | None:
    endpoints = {}
    for part in _parts("XRT_WORKERS", workers, _WORKER, "localservice:0;grpc://localhost:40934"):
        endpoints[part["worker"], part["task"]] = part["endpoint"]
    example = "CPU:0;/job:localservice/replica:0/task:0/device:XLA_CPU:0"
    parts = _parts("XRT_DEVICE_MAP", devices, _DEVICE, example)
    used = {(part["job"], part["task"]) for part in parts} if parts else set(endpoints)
    for name in sorted(used & set(endpoints)):
        if not _is_local(endpoints[name]):
            _remote("XRT_WORKERS", endpoints[name], "unset XRT_WORKERS and XRT_DEVICE_MAP")
    if not parts:
        return None
    # The first entry was the default device; a program has devices of one type.
    kind = parts[0]["kind"]
    return DeviceRequest(_KINDS[kind], len({part["n"] for part in parts if part["kind"] == kind}), "XRT_DEVICE_MAP")


def _conf_file(path: Path) -> DeviceRequest | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for part in _parts(str(path), "|".join(lines), _CONF, "worker: tpu_worker localhost:8470"):
        if not _is_local(part["endpoint"]):
            _remote(str(path), part["endpoint"], "remove that file")
    return DeviceRequest("TPU", 1, str(path)) if lines else None


def _check_colab(endpoint: str) -> None:
    # Without this error, an old notebook would silently train on the CPU.
    if endpoint and not _is_local(endpoint.removeprefix("grpc://")):
        cure = "unset COLAB_TPU_ADDR; in Colab, change to a runtime that has the TPU in its own machine"
        _remote("COLAB_TPU_ADDR", endpoint, cure)


def _parts(source: str, text: str, form: re.Pattern[str], example: str) -> list[re.Match[str]]:
    matches = [(part, form.fullmatch(part.strip())) for part in text.split("|") if part.strip()]
    for part, match in matches:
        if match is None:
            raise ValueError(f"{source}: {part!r} does not have the form {example}")
    return [match for _, match in matches if match is not None]


def _is_local(endpoint: str) -> bool:
    return endpoint.rpartition(":")[0] in _LOCAL_HOSTS


def _remote(source: str, endpoint: str, cure: str) -> NoReturn:
    raise RuntimeError(_REMOTE.format(source=source, endpoint=endpoint, cure=cure))
