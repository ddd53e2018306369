"""Build the library with which ``import torch`` alone offers xla (torch_xla_autoload), for later processes."""

from __future__ import annotations

import warnings
from pathlib import Path

from torch_xla._engine.base.settings import settings
from torch_xla._engine.recorder import build
from torch_xla._engine.recorder.toolchain import RecorderBuildError
from torch_xla_autoload import device_guard


def device_guard_extension() -> build.Extension:
    """Return the library's extension, with the user's cache folder."""
    return build.Extension(
        device_guard.NAME, device_guard.SOURCES, settings.cache_dir, what=device_guard.WHAT, is_module=False
    )


def build_library() -> Path | None:
    """Build the library unless it exists; return its path. Warns if it cannot be built: all else works without it."""
    try:
        return build.build_or_find(device_guard_extension())
    except RecorderBuildError as error:
        warnings.warn(
            f"torch_xla: .to('xla') after `import torch` alone will raise; import torch_xla before. {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
