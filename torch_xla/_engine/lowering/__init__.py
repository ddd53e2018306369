"""aten operators as jax: one registry, a file per family of operators. See README.md."""

import importlib
import pkgutil

from torch_xla._engine.lowering.registry import RULES


def load_rules() -> None:
    """Imports every module of this package; each adds its rules to RULES as it is imported."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


__all__ = ["RULES", "load_rules"]
