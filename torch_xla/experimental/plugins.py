"""Devices of vendors, as PJRT plugins: ``register_plugin("MYDEVICE", MyPlugin())``, then ``PJRT_DEVICE=MYDEVICE``.

Whatever jax has a plugin of (packages with ``jax_plugins``) needs none of this: its name in PJRT_DEVICE is enough.
"""

from __future__ import annotations

from torch_xla._engine.device import devices, hardware_detection, pjrt_plugins
from torch_xla._engine.device.pjrt_plugins import DevicePlugin

__all__ = [
    "DevicePlugin", "default", "register_installed_plugins", "register_plugin", "use_dynamic_plugins",
    "using_dynamic_plugins",
]  # fmt: skip


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Makes a kind of device known, before the first use of a device.

    ``PJRT_DEVICE=name`` in any case then means devices of that plugin, whose platform jax calls by the name in lower
    case. Processes that spawn starts register it, too. Raises RuntimeError when devices are in use already.
    """
    if devices.backend_started():
        raise RuntimeError(
            f"register_plugin: devices of kind {devices.device_type()} are in use; register {name} before"
        )
    pjrt_plugins.register_plugin(name, device_plugin)


def register_installed_plugins() -> None:
    """Registers the plugins of installed packages: entry points of the group ``torch_xla.plugins``, by device type.

    Done when PJRT_DEVICE names a kind that nobody knows.
    """
    pjrt_plugins.register_installed()


def default() -> DevicePlugin:
    """The plugin of this process's device type. Raises RuntimeError where that is no plugin's."""
    kind = hardware_detection.detect_device_type()
    found = pjrt_plugins.find_plugin(kind)
    if found is None:
        raise RuntimeError(f"plugins.default: no plugin is registered for devices of kind {kind}")
    return found


def use_dynamic_plugins() -> None:
    """Looks for plugins of installed packages now. Registered ones are always used."""
    pjrt_plugins.register_installed()


def using_dynamic_plugins() -> bool:
    """Whether this process's devices are, or will be, those of a plugin."""
    return pjrt_plugins.find_plugin(hardware_detection.detect_device_type()) is not None
