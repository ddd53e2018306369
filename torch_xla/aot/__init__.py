"""Ahead-of-time compilation for accelerators, with their own compilers, on a machine without them.

    torch-xla aot --target v5e:2x2 train.py                      report on the programs of a script on a TPU
    compiled = torch_xla.aot.compile(step, model, batch, target="h100")
    print(compiled.memory.peak, compiled.cost.products)

TPU targets require ``pip install "jax[tpu]"``, GPU targets ``pip install "jax[cuda12]"``, or in a checkout of this
repository ``pip install ".[tpu,cuda]"``; neither requires an accelerator or a network.
"""

import warnings
from typing import Any

from torch_xla._engine.aot.target_compiler import DoesNotFitError, TargetError
from torch_xla._engine.aot.targets import MissingCompilerError, Target, get_target
from torch_xla.aot.api import Compiled, compile, load

__all__ = [
    "Compiled",
    "DoesNotFitError",
    "MissingCompilerError",
    "Target",
    "TargetError",
    "compile",
    "get_target",
    "load",
]

#: Deprecated names of the last release -> new names.
_RENAMED = {"TooLargeError": "DoesNotFitError", "target": "get_target"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"{__name__}.{name} is renamed to {__name__}.{new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
