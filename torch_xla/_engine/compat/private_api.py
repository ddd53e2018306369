"""A private name of torch or jax: what it is for, and what happens where a release does not have it."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_xla._engine.compat import versions


class MissingPrivateApiError(RuntimeError):
    """The installed torch or jax lacks a private name that this needs."""


#: Every entry there is, in the order of their modules.
ENTRIES: list[PrivateApi] = []


@dataclass(frozen=True)
class PrivateApi:
    """A private name, looked up when it is used: importing torch_xla does not fail for one that is missing.

    Args:
      module: what to import, such as ``torch._utils``.
      name: the name in it, with dots for a name in a class.
      purpose: what torch_xla does with it.
      without: what happens where it is missing.
      optional: of a package that need not be installed.
      since: the first release of torch that has it, such as ``2.15``; what it is for does not exist in earlier ones.
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
        """As one writes it: ``torch._utils._get_restore_location``."""
        return f"{self.module}.{self.name}"

    @property
    def is_missing(self) -> bool:
        """Whether this release should have it and does not."""
        return not (self.optional or versions.is_before(self.since)) and self.resolve_or_none() is None

    def resolve_or_none(self) -> Any:
        """What the name stands for; None where it is missing."""
        try:
            return functools.reduce(getattr, self.name.split("."), importlib.import_module(self.module))
        except (ImportError, AttributeError):
            return None

    def resolve(self) -> Any:
        """What the name stands for. Raises MissingError."""
        found = self.resolve_or_none()
        if found is None:
            raise MissingPrivateApiError(
                f"{self._missing()}; needed: {self.purpose}. {versions.untested_torch_hint()}".rstrip(" .")
            )
        return found

    def wrap(self, ours: Callable[..., Any]) -> None:
        """From now on a call of it is ``ours(original, *args, **kwargs)``; once.

        Warns where it is missing; does nothing in releases before ``since``.
        """
        original = self.resolve_or_none()
        if original is None:
            if self.is_missing:
                self.warn_missing()
            return
        if getattr(original, "_torch_xla", False):
            return

        # A function of the same name: pickles refer to it by that.
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return ours(original, *args, **kwargs)

        wrapper._torch_xla = True  # type: ignore[attr-defined]
        # torch.jit.script compiles the original: torch.distributed.optim scripts optimizers when it is imported.
        wrapper.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
        *path, last = self.name.split(".")
        setattr(functools.reduce(getattr, path, importlib.import_module(self.module)), last, wrapper)

    def warn_missing(self) -> None:
        """Says that it is missing, and what follows."""
        warnings.warn(f"{self._missing()}: {self.without}", RuntimeWarning, stacklevel=3)

    def _missing(self) -> str:
        release = {"jax": "jax", "jaxlib": "jax", "multiprocessing": "Python", "_thread": "Python"}.get(
            self.module.split(".")[0], "torch"
        )
        return f"torch_xla: {release} {versions.installed_versions()[release]} has no {self.path}"
