"""Third-party devices: PJRT plugins by name, which jax loads when a device is first used.

jax reads the list of plugins from PJRT_NAMES_AND_LIBRARY_PATHS once, when its backends start; a plugin with client
options is listed as a JSON file. Packages may provide plugins as entry points. Plugins of jax (modules of the namespace
package jax_plugins, or entry points of that name) are loaded by jax itself; here they have only a name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch_xla._engine.job import replicas

#: Entry points of this group are DevicePlugin classes, named by device type.
GROUP = "torch_xla.plugins"
#: The package, and the group of entry points, of jax's plugins.
JAX_GROUP = "jax_plugins"
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


class JaxPlugin(DevicePlugin):
    """A plugin that jax's own discovery finds and loads, by the name of its module or entry point: ``xla_rocm7``."""

    def __init__(self, module: str) -> None:
        self.module = module

    def library_path(self) -> str:
        """Return the file of the module that loads the plugin, or the module's name if it cannot be found."""
        for name in (f"{JAX_GROUP}.{self.module}", self.module):
            try:
                found = importlib.util.find_spec(name)
            except ModuleNotFoundError:
                continue
            if found is not None and found.origin is not None:
                return found.origin
        return self.module


def jax_plugins() -> tuple[str, ...]:
    """Return the plugins that jax's discovery finds: modules of the package jax_plugins, and entry points."""
    package = importlib.util.find_spec(JAX_GROUP)
    folders = [] if package is None else package.submodule_search_locations or []
    modules = {module.name for module in pkgutil.iter_modules(folders)}
    return tuple(sorted(modules | {point.name for point in importlib.metadata.entry_points(group=JAX_GROUP)}))


def _find_jax_plugin(kind: str) -> JaxPlugin | None:
    """Return the plugin of jax whose name, without "xla", "jax", "pjrt", "plugin" and version, is the device type."""
    for name in jax_plugins():
        words = re.split(r"[_\W\d]+", name.lower())
        if [word for word in words if word not in _NOT_A_DEVICE] == [kind.lower()]:
            return JaxPlugin(name)
    return None


_NOT_A_DEVICE = ("", "jax", "pjrt", "plugin", "xla")
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
    """Return the plugin of a device type, including those of installed packages and of jax; None if there is none."""
    if kind not in _registered:
        register_installed()
    return _registered.get(kind) or _find_jax_plugin(kind)


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
    if isinstance(plugin, JaxPlugin):
        return  # jax loads it
    path, options = plugin.library_path(), dict(plugin.client_create_options())
    if options:
        folder = tempfile.mkdtemp(prefix="torch_xla-plugin-")
        where = Path(folder) / f"{kind.lower()}.json"
        where.write_text(json.dumps({"library_path": str(path), "create_options": options}))
        path = str(where)
    others = os.environ.get(_VARIABLE, "")
    os.environ[_VARIABLE] = f"{others}{',' if others else ''}{kind.lower()}{os.path.pathsep}{path}"
