"""Declaration of a private name of torch or jax: its purpose, and what happens in releases without it."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_xla._engine.compat import imported_names, versions


class MissingPrivateApiError(RuntimeError):
    """The installed torch or jax lacks a required private name."""


#: All entries, in the order of their modules.
ENTRIES: list[PrivateApi] = []


@dataclass(frozen=True)
class PrivateApi:
    """A private name, resolved on use: importing torch_xla does not fail if it is missing.

    Args:
      module: The module to import, such as ``torch._utils``.
      name: The name in the module, with dots for a name in a class.
      purpose: What torch_xla uses it for.
      without: What happens if it is missing.
      optional: Whether it belongs to a package that need not be installed.
      since: The first torch release that has it, such as ``2.15``; earlier releases do not need it.
    """

    module: str
    name: str
    purpose: str
    without: str
    optional: bool = False
    since: str = ""

    def __post_init__(self) -> None:
        ENTRIES.append(self)

    @property
    def path(self) -> str:
        """The full name, such as ``torch._utils._get_restore_location``."""
        return f"{self.module}.{self.name}"

    @property
    def is_missing(self) -> bool:
        """Whether the installed release should have it but does not."""
        return not (self.optional or versions.is_before(self.since)) and self.resolve_or_none() is None

    def resolve_or_none(self) -> Any:
        """Return the object; None if it is missing."""
        try:
            return functools.reduce(getattr, self.name.split("."), importlib.import_module(self.module))
        except (ImportError, AttributeError):
            return None

    def resolve(self) -> Any:
        """Return the object. Raises MissingPrivateApiError."""
        found = self.resolve_or_none()
        if found is None:
            raise MissingPrivateApiError(
                f"{self._missing()}; needed: {self.purpose}. {versions.untested_torch_hint()}".rstrip(" .")
            )
        return found

    def wrap(self, replacement: Callable[..., Any]) -> None:
        """Replace the function by ``replacement(original, *args, **kwargs)``, once.

        Warns if it is missing; does nothing in releases before ``since``.
        """
        original = self.resolve_or_none()
        if original is None:
            if self.is_missing:
                self.warn_missing()
            return
        if getattr(original, "_torch_xla", False):
            return

        # functools.wraps preserves the name, by which pickles refer to the function.
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        # A separate code object: dynamo's tables, profiles and tracebacks tell wrappers apart by it.
        code = wrapper.__code__.replace(co_name=self.name.split(".")[-1])  # type: ignore[attr-defined]
        wrapper.__code__ = code  # type: ignore[attr-defined]
        wrapper._torch_xla = True  # type: ignore[attr-defined]
        # torch.jit.script compiles the original: torch.distributed.optim scripts optimizers when it is imported.
        wrapper.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
        *path, last = self.name.split(".")
        setattr(functools.reduce(getattr, path, importlib.import_module(self.module)), last, wrapper)
        if not path and not last.startswith("_"):  # a public function, which scripts import by name
            imported_names.add_replacement(original, wrapper)

    def warn_missing(self) -> None:
        """Warn that the name is missing, and what follows."""
        warnings.warn(f"{self._missing()}: {self.without}", RuntimeWarning, stacklevel=3)

    def _missing(self) -> str:
        release = {"jax": "jax", "jaxlib": "jax", "multiprocessing": "Python", "_thread": "Python"}.get(
            self.module.split(".")[0], "torch"
        )
        return f"torch_xla: {release} {versions.installed_versions()[release]} has no {self.path}"
