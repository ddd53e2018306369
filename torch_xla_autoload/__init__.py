"""Make ``device="xla"`` work after ``import torch``: the entry point of torch's group ``torch.backends``.

torch calls ``register`` at the end of its import, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0. A package of its own, because
importing any module of torch_xla loads jax and the recorder. This one imports neither: hooks.py lists where it waits
for the first use of xla, and loading.py then imports torch_xla, which removes the hooks.
"""

from __future__ import annotations

import warnings

__all__ = ["register"]


def register() -> None:
    """Load torch_xla at the first use of xla. Takes milliseconds and prints nothing.

    Warns, and leaves torch as it is, if the hooks cannot be installed: importing torch must not fail.
    """
    from torch_xla_autoload import hooks, loading

    try:
        hooks.install()
    except Exception as error:
        loading.remove_hooks()
        warnings.warn(
            f"torch_xla: `import torch` does not offer xla: {type(error).__name__}: {error}. Import torch_xla to use "
            "it, and report this with the output of torch-xla doctor.",
            RuntimeWarning,
            stacklevel=2,
        )
