"""The debug options of XLA in this process, which it parses from its flags once."""

from __future__ import annotations

from torch_xla._engine.compat.private_api import PrivateApi

_OPTIONS = PrivateApi(
    "jaxlib.xla_client",
    "CompileOptions",
    "cached programs are named by the flags that XLA has parsed, whenever the environment changed",
    "cached programs are named by XLA_FLAGS as it is when the first device is used",
)


def serialize_options() -> bytes:
    """Return XLA's debug options as they are in this process, serialized; nothing where jaxlib does not tell.

    XLA parses XLA_FLAGS in the first call, if it has not before.
    """
    kind = _OPTIONS.resolve_or_none()
    if kind is None:
        return b""
    options = kind()
    _ = options.executable_build_options.debug_options  # reading them fills them in
    return bytes(options.SerializeAsString())
