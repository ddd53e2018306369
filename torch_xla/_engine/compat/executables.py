"""Initialize the kernels of programs that are loaded from a file: jax initializes them only during lowering.

jaxlib's CPU kernels call the LAPACK of scipy through pointers that are null until jax lowers the first call of one in
the process, and its hybrid kernels for GPUs do the same. A program that was compiled by another process and calls such
a kernel jumps to address 0 (checked on jaxlib 0.10.2 and 0.12.0.1); jax initializes them for what ``jax.export`` has
written, but not in ``jax.experimental.serialize_executable``.
"""

from __future__ import annotations

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
