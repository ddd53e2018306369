"""The tested releases of torch, jax and Python; docs/reference/versions.md lists the test runs."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings

#: Minor releases; docs/reference/versions.md lists a test run for each.
TESTED = {
    "torch": ("2.11", "2.12", "2.13", "2.14", "2.15"),
    "jax": ("0.10", "0.11", "0.12"),
    "Python": ("3.11", "3.12", "3.13"),
}


def torch_release() -> str:
    """Return the installed torch release. Imports torch lazily: ``python -m torch_xla.doctor`` works without torch."""
    import torch

    return str(torch.__version__)


def installed_versions() -> dict[str, str]:
    """Return the installed releases, by the names in TESTED."""
    return {"torch": torch_release(), "jax": importlib.metadata.version("jax"), "Python": sys.version.split()[0]}


def tested_range(name: str) -> str:
    """Return the tested range of releases, such as ``2.11 to 2.15``."""
    first, last = TESTED[name][0], TESTED[name][-1]
    return first if first == last else f"{first} to {last}"


def minor_version(release: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu``."""
    return ".".join(release.split("+")[0].split(".")[:2])


def is_tested(name: str, release: str) -> bool:
    """Whether a release, or an earlier patch of it, was tested."""
    return minor_version(release) in TESTED[name]


def is_before(release: str, package: str = "torch") -> bool:
    """Whether the installed torch, or another package, is older than a minor release; False for an empty one."""
    installed = torch_release() if package == "torch" else importlib.metadata.version(package)
    return bool(release) and _numbers(minor_version(installed)) < _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def untested_torch_hint() -> str:
    """Return the hint for errors that an untested torch may cause; empty if the installed torch was tested."""
    release = torch_release()
    if is_tested("torch", release):
        return ""
    return (
        f"torch {release} was not tested with this torch_xla (tested: torch {tested_range('torch')}): "
        "install a tested release, or a matching torch_xla"
    )


def warn_untested_versions() -> None:
    """Warn once if torch, jax or Python is a release that was not tested."""
    unknown = {name: release for name, release in installed_versions().items() if not is_tested(name, release)}
    if unknown:
        found = " and ".join(f"{name} {release}" for name, release in unknown.items())
        known = ", ".join(f"{name} {tested_range(name)}" for name in unknown)
        warnings.warn(
            f"torch_xla was not tested with {found} (tested: {known}). It may work; "
            "python -m torch_xla._engine.compat lists the private names of torch and jax that are missing.",
            RuntimeWarning,
            stacklevel=4,  # startup.initialize, torch_xla/__init__, the user's import
        )
