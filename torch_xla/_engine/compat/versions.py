"""Which releases of torch, jax and Python this one was tested with; docs/versions.md has the runs."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings

#: By minor release; each has a run of the tests behind it in docs/versions.md.
TESTED = {
    "torch": ("2.11", "2.12", "2.13", "2.14", "2.15"),
    "jax": ("0.10", "0.12"),
    "Python": ("3.11", "3.12", "3.13"),
}


def torch_release() -> str:
    """This process's torch. Imported here, as ``python -m torch_xla.doctor`` reads the table without a torch."""
    import torch

    return str(torch.__version__)


def installed_versions() -> dict[str, str]:
    """The releases of this process, by the names in TESTED."""
    return {"torch": torch_release(), "jax": importlib.metadata.version("jax"), "Python": sys.version.split()[0]}


def tested_range(name: str) -> str:
    """``2.11 to 2.15``: what this release was tested with."""
    first, last = TESTED[name][0], TESTED[name][-1]
    return first if first == last else f"{first} to {last}"


def minor_version(release: str) -> str:
    """``2.13`` of ``2.13.0+cpu``."""
    return ".".join(release.split("+")[0].split(".")[:2])


def is_tested(name: str, release: str) -> bool:
    """Whether a release is one of those, or a later patch of one."""
    return minor_version(release) in TESTED[name]


def is_before(release: str) -> bool:
    """Whether this torch is older than a minor release; nothing is before an empty one."""
    return bool(release) and _numbers(minor_version(torch_release())) < _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def untested_torch_hint() -> str:
    """What an error that may come of an untested torch ends with; nothing where this torch was tested."""
    release = torch_release()
    if is_tested("torch", release):
        return ""
    return (
        f"torch {release} was not tested with this torch_xla, which was tested with torch {tested_range('torch')}: "
        "install one of those, or a torch_xla made for this one"
    )


def warn_untested_versions() -> None:
    """One warning where torch, jax or Python is a release that was not tested."""
    unknown = {name: release for name, release in installed_versions().items() if not is_tested(name, release)}
    if unknown:
        found = " and ".join(f"{name} {release}" for name, release in unknown.items())
        known = ", ".join(f"{name} {tested_range(name)}" for name in unknown)
        warnings.warn(
            f"torch_xla was not tested with {found} (it was with {known}). It may work; "
            "python -m torch_xla._engine.compat says what it needs of torch and jax, and what of that is missing.",
            RuntimeWarning,
            stacklevel=4,  # start, torch_xla/__init__, the user's import
        )
