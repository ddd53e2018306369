"""PJRT plugins of third-party devices: registration with jax, and its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import run_script

REGISTERED = """
import json, os
import torch
import torch_xla
import torch_xla.runtime as xr
from torch_xla._engine.device import hardware_detection
from torch_xla.experimental import plugins

class Plugin(plugins.DevicePlugin):
    def __init__(self, options):
        self.options, self.called = options, []
    def library_path(self):
        return "/no/such/library.so"
    def configure_single_process(self):
        self.called.append("single")
    def configure_multiprocess(self, rank, size):
        self.called.append((rank, size))
    def physical_chip_count(self):
        return 3
    def host_index(self):
        return 7
    def client_create_options(self):
        return self.options

mine = Plugin({"speed": 2, "name": "x"})
assert not plugins.using_dynamic_plugins()
try:
    plugins.default()
except RuntimeError as error:
    print(error)
plugins.register_plugin("MyDevice", mine)
assert plugins.default() is mine and plugins.using_dynamic_plugins()
assert (hardware_detection.max_local_processes(), xr.host_index(), mine.called) == (3, 7, [])
try:
    torch.ones(2, device="xla")
except RuntimeError as error:
    print(str(error).splitlines()[0][:50], "library.so" in str(error), "of Plugin" in str(error))
name, path = os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"].split(":")
print(name, json.load(open(path)), mine.called)
"""


def test_a_registered_plugin_is_what_jax_loads() -> None:
    done = run_script(REGISTERED, check=False, PJRT_DEVICE="mydevice")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "plugins.default: no plugin is registered for the device type MYDEVICE",
        "PJRT_DEVICE requests MYDEVICE, but jax has no myde True True",
        "mydevice {'library_path': '/no/such/library.so', 'create_options': {'speed': 2, 'name': 'x'}} ['single']",
    ]


INSTALLED = """
import importlib.metadata, os, sys
import torch_xla
from torch_xla.experimental import plugins

class Plugin(plugins.DevicePlugin):
    def library_path(self):
        return "/no/such/other.so"

class Point:
    name = "offered"
    def load(self):
        return Plugin

importlib.metadata.entry_points = lambda group: [Point()] if group == "torch_xla.plugins" else []
assert type(plugins.default()) is Plugin
try:
    torch_xla.devices()
except RuntimeError as error:
    print(os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"], "other.so" in str(error))
"""


def test_a_plugin_of_an_installed_package_is_found() -> None:
    done = run_script(INSTALLED, check=False, PJRT_DEVICE="OFFERED")
    assert (done.returncode, done.stdout) == (0, "offered:/no/such/other.so True\n"), done.stderr


JAX = """
import os, sys
from pathlib import Path
folder = Path({folder!r})
(folder / "jax_plugins").mkdir(parents=True)
(folder / "jax_plugins/xla_gate3.py").write_text("def initialize():\\n    print('initialized')\\n")
sys.path.insert(0, str(folder))
import torch_xla
from torch_xla.experimental import plugins
found = plugins.default()
print(type(found).__name__, found.module, Path(found.library_path()).name, plugins.using_dynamic_plugins())
try:
    torch_xla.devices()
except RuntimeError as error:
    print("xla_gate3.py, of JaxPlugin" in str(error), os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS"))
"""


def test_a_plugin_of_jax_needs_no_registration(tmp_path: Path) -> None:
    """jax finds and loads it; torch_xla knows it by name."""
    script = JAX.format(folder=str(tmp_path / "packages"))
    done = run_script(script, check=False, fresh="importing jax imports jax_plugins", PJRT_DEVICE="gate")
    expected = ["JaxPlugin xla_gate3 xla_gate3.py True", "initialized", "True None"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_an_unknown_device_type_lists_the_plugins_of_jax() -> None:
    done = run_script("import torch_xla\ntorch_xla.devices()", check=False, PJRT_DEVICE="lever")
    assert "Plugins that jax finds: " in done.stderr


def test_too_late() -> None:
    done = run_script(
        """
        import torch, torch_xla
        from torch_xla.experimental import plugins
        torch.ones(1, device="xla")
        try:
            plugins.register_plugin("NAME", plugins.DevicePlugin())
        except RuntimeError as error:
            print(error)
        try:
            plugins.DevicePlugin().library_path()
        except NotImplementedError as error:
            print(error)
        """,
        PJRT_DEVICE="CPU",
    )
    assert done.stdout.splitlines() == [
        "register_plugin: devices of type CPU are in use; register NAME before",
        "DevicePlugin: library_path() must return the path of the PJRT plugin",
    ]


#: A package of jax's for GPUs, whose driver is missing.
NO_DRIVER = """
import sys
from pathlib import Path
folder = Path({folder!r})
(folder / "xla_cuda99-1.0.dist-info").mkdir(parents=True)
(folder / "xla_cuda99-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\\nName: xla-cuda99\\nVersion: 1.0\\n")
(folder / "xla_cuda99-1.0.dist-info/entry_points.txt").write_text("[jax_plugins]\\nx = xla_cuda99\\n")
(folder / "xla_cuda99.py").write_text("def initialize():\\n    print('tried')\\n    raise RuntimeError('no driver')\\n")
sys.path.insert(0, str(folder))
import jax
import torch
import torch_xla
assert torch.ones(2, device="xla").sum().item() == 2
print(jax.config.jax_platforms)
"""


@pytest.mark.parametrize(
    ("variables", "platforms", "is_told"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "None", False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "None", True),  # there should be a GPU
        ({"PJRT_DEVICE": "CPU"}, "cpu", True),  # jax tries plugins all the same; a real one looks at the platforms
    ],
    ids=["no GPU", "a GPU", "asked for the CPU"],
)
def test_a_missing_driver(variables: dict[str, str], platforms: str, is_told: bool, tmp_path: Path) -> None:
    """It is no error on a machine without a GPU; and where the CPU is asked for, jax starts nothing else."""
    done = run_script(NO_DRIVER.format(folder=str(tmp_path / "packages")), check=False, **variables)
    assert (done.returncode, done.stdout) == (0, f"tried\n{platforms}\n"), done.stderr
    assert ("no driver" in done.stderr) is is_told, done.stderr
