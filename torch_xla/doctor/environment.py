"""Check versions, compiler, cache folder and environment variables without importing torch or jax."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from torch_xla._engine.base import cxx_compiler, settings_check
from torch_xla._engine.base.settings import settings, variables
from torch_xla._engine.compat import versions
from torch_xla._version import __version__
from torch_xla.doctor.report import DoctorReport

_PACKAGES = ("torch", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "ml_dtypes")


def check_environment(report: DoctorReport) -> None:
    """Add versions, compiler, cache folder and environment variables to the report."""
    report.add_line("torch_xla", f"{__version__} from {Path(__file__).parents[1]}")
    report.add_line("system", f"{_distribution()}, {platform.platform()}, {os.cpu_count()} CPUs")
    report.add_line("Python", f"{platform.python_version()}, {sys.executable}")
    _versions(report)
    _compiler(report)
    _cache(report)
    _variables(report)


def installed_version(package: str) -> str | None:
    """Return the installed version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # no such file
        return platform.system()


def _versions(report: DoctorReport) -> None:
    found = {package: installed_version(package) for package in _PACKAGES}
    report.add_line("packages", ", ".join(f"{package} {release}" for package, release in found.items() if release))
    for package in ("torch", "jax", "jaxlib"):
        if not found[package]:
            report.add_finding(f"{package} is not installed.", f"pip install {package}")
    known = {"torch": found["torch"], "jax": found["jax"], "Python": platform.python_version()}
    for name, release in known.items():
        if release and not versions.is_tested(name, release):
            tested = versions.tested_range(name)
            report.add_finding(
                f"torch_xla was tested with {name} {tested}, not with {release}.", f"Install {name} {tested}"
            )
    for package in ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"):
        if found[package] and found["jax"] and found[package] != found["jax"]:
            what = f"{package} {found[package]} is from another release than jax {found['jax']}."
            report.add_finding(what, f"pip install {package}=={found['jax']}")


def _compiler(report: DoctorReport) -> None:
    command = cxx_compiler.find_compiler()
    if command is None:
        report.add_line("compiler", "none")
        what = f"{cxx_compiler.missing_compiler_message()} was not found: it is needed once per torch release."
        report.add_finding(what[0].upper() + what[1:], cxx_compiler.INSTALL_COMPILER)
        return
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
        report.add_line(
            "compiler", f"{' '.join(command)}: {(done.stdout or done.stderr).strip().partition(chr(10))[0]}"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        report.add_line("compiler", f"{' '.join(command)}: {error}")
        report.add_finding(f"The compiler cannot be run: {error}", cxx_compiler.INSTALL_COMPILER)


def _cache(report: DoctorReport) -> None:
    try:
        folder, kept = settings.cache_dir, settings.XLA_PERSISTENT_CACHE_PATH
    except ValueError:  # reported with the variables
        return
    report.add_line("cache", f"{folder}: {_size(folder)}")
    _writable(folder, report, "Set TORCH_XLA_CACHE_DIR to a writable folder")
    if kept == Path():
        report.add_line("programs", "not stored on disk: XLA_PERSISTENT_CACHE_PATH is empty")
    elif kept is None:
        report.add_line("programs", "stored in the cache folder")
    else:
        report.add_line("programs", f"{kept}: {_size(kept)}")
    if kept and kept != Path() and not settings.XLA_PERSISTENT_CACHE_READ_ONLY:
        _writable(kept, report, "Set XLA_PERSISTENT_CACHE_PATH to a writable folder")


def _size(folder: Path) -> str:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.lstat().st_size)
        except OSError:  # removed in the meantime, or not readable
            continue
    return f"{sum(sizes) / 1e6:.0f} MB in {len(sizes)} files and folders" if folder.exists() else "does not exist yet"


def _writable(folder: Path, report: DoctorReport, cure: str) -> None:
    """Try to write into the nearest existing folder: permissions do not show that a file system is read-only."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        report.add_finding(f"The cache folder {folder} is not writable: {error.strerror} ({there}).", cure)


def _variables(report: DoctorReport) -> None:
    names = {name for variable in variables() for name in variable.spellings}
    given = {name: os.environ[name] for name in sorted(os.environ) if name in names}
    jax = {
        name: text
        for name, text in sorted(os.environ.items())
        if name.startswith(("JAX_", "LIBTPU", *settings_check.OTHERS))
    }
    report.add_line("variables", ", ".join(f"{name}={text}" for name, text in (given | jax).items()) or "none is set")
    for variable in variables():
        try:
            variable.read()
        except ValueError as error:
            report.add_finding(f"{error}.", "`torch-xla settings` lists the variables")
    for name in sorted(os.environ):
        if (
            name.startswith(settings_check.PREFIXES)
            and not name.startswith(settings_check.OTHERS)
            and name not in names
        ):
            report.add_finding(
                f"The environment variable {name} is set, but torch_xla does not read it.", _advice(name, names)
            )


def _advice(name: str, names: set[str]) -> str:
    if name in settings_check.UPSTREAM:
        return settings_check.UPSTREAM[name]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"Did you mean {near[0]}?" if near else "`torch-xla settings` lists the variables"
