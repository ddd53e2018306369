"""Load serialized executables: initialize their kernels, and move them to other devices.

jax initializes kernels only during lowering.

jaxlib's CPU kernels call the LAPACK of scipy through pointers that are null until jax lowers the first call of one in
the process, and its hybrid kernels for GPUs do the same. A program that was compiled by another process and calls such
a kernel jumps to address 0 (checked on jaxlib 0.10.2 and 0.12.0.1); jax initializes them for what ``jax.export`` has
written, but not in ``jax.experimental.serialize_executable``.
"""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np

from torch_xla._engine.compat.private_api import PrivateApi

_WITHOUT = "such a program raises, or is compiled again where the persistent cache has it"

# What the names of the kernels contain, and what initializes them: not in every process, as that imports scipy (0.2 s).
_KERNELS: tuple[tuple[bytes, PrivateApi], ...] = (
    (
        b"lapack_",
        PrivateApi(
            "jax._src.lax.linalg",
            "initialize_lapack",
            "programs from files that call LAPACK (svd, qr, eigh, cholesky, ...) on a CPU",
            _WITHOUT,
        ),
    ),
    (
        b"hybrid_",
        PrivateApi(
            "jaxlib.gpu_solver",
            "initialize_hybrid_kernels",
            "programs from files that call LAPACK or MAGMA (eig, pivoted qr) on a GPU",
            _WITHOUT,
        ),
    ),
)


def initialize_kernels(program: bytes) -> None:
    """Initialize those kernels of jaxlib that a program calls; before it runs. Raises MissingPrivateApiError.

    Args:
      program: a serialized executable, or the name of a kernel. Bytes that are equal to a part of a name by chance cost
        an import, nothing else.
    """
    for part, initialize in _KERNELS:
        if part in program:
            initialize.resolve()()


_MOVED = "a program that another process of the job compiled for its own device"
_UNPICKLER = PrivateApi("jax.experimental.serialize_executable", "_JaxPjrtUnpickler", _MOVED, _WITHOUT)
_OPTIONS = PrivateApi("jax._src.compiler", "get_compile_options", _MOVED, _WITHOUT)


def load_on_device(
    program: bytes, in_tree: Any, out_tree: Any, written_for: int, device: jax.Device
) -> jax.stages.Compiled:
    """Load a serialized executable onto another device than that it was compiled for. Raises MissingPrivateApiError.

    jax looks devices up by id, and XLA takes the device from the options of the compilation, which are in the
    executable (checked on jax 0.10.2).

    Args:
      program: what ``jax.experimental.serialize_executable.serialize`` returned, with ``in_tree`` and ``out_tree``.
      written_for: the id of the device that it was compiled for.
      device: the device that takes its place.
    """
    options = _OPTIONS.resolve()(num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]]))
    unpickler: Any = _UNPICKLER.resolve()

    class Unpickler(unpickler):  # type: ignore[misc]
        def persistent_load(self, pid: tuple[Any, ...]) -> Any:
            if pid[0] == "exec":
                return self.backend.deserialize_executable(pid[1], self.execution_devices, options)
            return super().persistent_load(pid)

    reader = Unpickler(io.BytesIO(program), device.client, [device])
    reader.devices_by_id = {written_for: device}
    unloaded, args_info, no_kwargs = reader.load()
    return jax.stages.Compiled(unloaded.load(), [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)
