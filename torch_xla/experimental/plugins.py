"""PJRT plugins of device vendors: ``register_plugin("MYDEVICE", MyPlugin())``, then ``PJRT_DEVICE=MYDEVICE``.

Devices with a jax plugin (a module of ``jax_plugins``, or an entry point of that name) need no registration: set
PJRT_DEVICE to jax's name of the platform, such as ``rocm``.
"""

from __future__ import annotations

from torch_xla._engine.device import devices, hardware_detection, pjrt_plugins
from torch_xla._engine.device.pjrt_plugins import DevicePlugin, JaxPlugin

__all__ = [
    "DevicePlugin", "JaxPlugin", "default", "register_installed_plugins", "register_plugin", "use_dynamic_plugins",
    "using_dynamic_plugins",
]  # fmt: skip


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Register a device type, before the first use of a device.

    ``PJRT_DEVICE=name``, in upper or lower case, then selects devices of the plugin; jax's platform name is the name in
    lower case. Processes that spawn starts register it, too.

    Args:
      name: name of the device type.
      device_plugin: the plugin.

    Raises:
      RuntimeError: devices are in use.
    """
    if devices.backend_started():
        raise RuntimeError(
            f"register_plugin: devices of type {devices.device_type()} are in use; register {name} before"
        )
    pjrt_plugins.register_plugin(name, device_plugin)


def register_installed_plugins() -> None:
    """Register the plugins of installed packages: entry points of the group ``torch_xla.plugins``, by device type.

    Called when PJRT_DEVICE is an unknown device type.
    """
    pjrt_plugins.register_installed()


def default() -> DevicePlugin:
    """Return the plugin of this process's device type.

    Raises:
      RuntimeError: the type has no plugin.
    """
    kind = hardware_detection.detect_device_type()
    found = pjrt_plugins.find_plugin(kind)
    if found is None:
        raise RuntimeError(f"plugins.default: no plugin is registered for the device type {kind}")
    return found


def use_dynamic_plugins() -> None:
    """Search installed packages for plugins now. Registered plugins are always used."""
    pjrt_plugins.register_installed()


def using_dynamic_plugins() -> bool:
    """Return whether this process uses, or will use, the devices of a plugin."""
    return pjrt_plugins.find_plugin(hardware_detection.detect_device_type()) is not None
