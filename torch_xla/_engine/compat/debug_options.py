"""XLA's debug options in this process, which XLA parses from its flags once."""

from __future__ import annotations

from torch_xla._engine.compat.private_api import PrivateApi

_OPTIONS = PrivateApi(
    "jaxlib.xla_client",
    "CompileOptions",
    "keys of the persistent cache contain the flags that XLA has parsed",
    "keys of the persistent cache contain XLA_FLAGS at the first use of a device",
)


def serialize_options() -> bytes:
    """Return XLA's debug options of this process, serialized; empty if jaxlib does not expose them.

    The first call parses XLA_FLAGS, if XLA has not parsed it yet.
    """
    kind = _OPTIONS.resolve_or_none()
    if kind is None:
        return b""
    options = kind()
    _ = options.executable_build_options.debug_options  # reading the property parses the flags
    return bytes(options.SerializeAsString())
