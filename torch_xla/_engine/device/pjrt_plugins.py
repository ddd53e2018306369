"""Devices of others: PJRT plugins by name, which jax loads when a device is first used.

jax reads which plugins there are from its variable PJRT_NAMES_AND_LIBRARY_PATHS, once, when its backends start; a
plugin with options for its client stands there as a JSON file. Packages may offer plugins as entry points.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch_xla._engine.job import replicas

#: Entry points of this group are classes of plugins, by the name of the device type.
GROUP = "torch_xla.plugins"
_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"


class DevicePlugin:
    """A kind of device that comes as a PJRT plugin; a subclass says where its library is."""

    def library_path(self) -> str:
        """The path of the plugin's library."""
        raise NotImplementedError(f"{type(self).__name__}: library_path() must give the path of the PJRT plugin")

    def host_index(self) -> int:
        """This machine's number among those of the job."""
        return replicas.process_index() // replicas.local_process_count()

    def configure_single_process(self) -> None:
        """Called before the library is loaded, in a process that is a job of its own."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Called before the library is loaded, in one of several processes of this machine."""

    def physical_chip_count(self) -> int:
        """How many devices processes of this machine can have one each of."""
        return 1

    def client_create_options(self) -> Mapping[str, str | int | float | bool | list[int]]:
        """Options with which the plugin's client is made."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether processes of a job need XLA's coordinator. Here they always have it."""
        return True


_registered: dict[str, DevicePlugin] = {}
_loaded: set[str] = set()


def register_plugin(name: str, plugin: DevicePlugin) -> None:
    """Makes a kind of device known: PJRT_DEVICE=NAME."""
    _registered[name.upper()] = plugin


def register_installed() -> None:
    """Registers what installed packages offer, unless a plugin of that name is registered."""
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name.upper() not in _registered:
            register_plugin(point.name, point.load()())


def find_plugin(kind: str) -> DevicePlugin | None:
    """The plugin of a kind of device, also of one that an installed package offers; None where there is none."""
    if kind not in _registered:
        register_installed()
    return _registered.get(kind)


def registered_plugin(kind: str) -> DevicePlugin | None:
    """The plugin of a kind of device that has been registered; looks for no others."""
    return _registered.get(kind)


def register_with_jax(kind: str, plugin: DevicePlugin) -> None:
    """Has jax, whose backends have not started, know the plugin; once."""
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
