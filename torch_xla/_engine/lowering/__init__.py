"""Lowers ATen operators to jax: a registry of rules, with one module per operator family. See README.md."""

import importlib
import pkgutil

from torch_xla._engine.lowering import rules
from torch_xla._engine.lowering.registry import RULES


def load_rules() -> None:
    """Imports the meta functions and every module of `lowering.rules`; each registers itself on import."""
    importlib.import_module(f"{__name__}.meta_functions")
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")


__all__ = ["RULES", "load_rules"]
