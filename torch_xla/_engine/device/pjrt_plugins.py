"""Third-party devices: PJRT plugins by name, which jax loads when a device is first used.

jax reads the list of plugins from PJRT_NAMES_AND_LIBRARY_PATHS once, when its backends start; a plugin with client
options is listed as a JSON file. Packages may provide plugins as entry points.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch_xla._engine.job import replicas

#: Entry points of this group are DevicePlugin classes, named by device type.
GROUP = "torch_xla.plugins"
_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"


class DevicePlugin:
    """A device type provided by a PJRT plugin; subclasses return the path of its library."""

    def library_path(self) -> str:
        """Return the path of the plugin's library."""
        raise NotImplementedError(f"{type(self).__name__}: library_path() must return the path of the PJRT plugin")

    def host_index(self) -> int:
        """Return the index of this machine among those of the job."""
        return replicas.process_index() // replicas.local_process_count()

    def configure_single_process(self) -> None:
        """Configure a single-process job. Called before the library is loaded."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Configure one of several processes of this machine. Called before the library is loaded.

        Args:
          local_rank: rank of the process on this machine.
          local_world_size: number of the job's processes on this machine.
        """

    def physical_chip_count(self) -> int:
        """Return the number of devices of this machine for processes with one device each."""
        return 1

    def client_create_options(self) -> Mapping[str, str | int | float | bool | list[int]]:
        """Return the options with which the plugin's client is created."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether processes of a job need XLA's coordinator. torch_xla always starts it."""
        return True


_registered: dict[str, DevicePlugin] = {}
_loaded: set[str] = set()


def register_plugin(name: str, plugin: DevicePlugin) -> None:
    """Register a device type for PJRT_DEVICE=NAME."""
    _registered[name.upper()] = plugin


def register_installed() -> None:
    """Register the plugins of installed packages, unless a plugin of the same name is registered."""
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name.upper() not in _registered:
            register_plugin(point.name, point.load()())


def find_plugin(kind: str) -> DevicePlugin | None:
    """Return the plugin of a device type, including plugins of installed packages; None if there is none."""
    if kind not in _registered:
        register_installed()
    return _registered.get(kind)


def registered_plugin(kind: str) -> DevicePlugin | None:
    """Return the registered plugin of a device type, without searching installed packages."""
    return _registered.get(kind)


def register_with_jax(kind: str, plugin: DevicePlugin) -> None:
    """Register the plugin with jax, whose backends have not started, once."""
    if kind in _loaded:
        return
    _loaded.add(kind)
    if replicas.process_count() > 1:
        plugin.configure_multiprocess(replicas.local_ordinal(), replicas.local_process_count())
    else:
        plugin.configure_single_process()
    path, options = plugin.library_path(), dict(plugin.client_create_options())
    if options:
        folder = tempfile.mkdtemp(prefix="torch_xla-plugin-")
        where = Path(folder) / f"{kind.lower()}.json"
        where.write_text(json.dumps({"library_path": str(path), "create_options": options}))
        path = str(where)
    others = os.environ.get(_VARIABLE, "")
    os.environ[_VARIABLE] = f"{others}{',' if others else ''}{kind.lower()}{os.path.pathsep}{path}"
