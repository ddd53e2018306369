"""Explains why torch_xla cannot be imported with a release of torch, jax or Python that was not tested."""

from __future__ import annotations

from torch_xla._engine.compat import public_names, versions


def explain_import_failure(error: Exception) -> ImportError | None:
    """Return an error that names the untested releases and what they lack; None if all releases were tested."""
    unknown = {n: r for n, r in versions.installed_versions().items() if not versions.is_tested(n, r)}
    if not unknown:
        return None
    found = " and ".join(f"{name} {release}" for name, release in unknown.items())
    tested = ", ".join(f"{name} {versions.tested_range(name)}" for name in unknown)
    missing = [f"{name} (used by {files[0]})" for name, files in public_names.missing_names().items()]
    lacks = f" These names do not exist there: {', '.join(missing)}." if missing else ""
    return ImportError(
        f"torch_xla cannot be imported with {found}: {type(error).__name__}: {error}.{lacks} "
        f"Install a tested release ({tested}), or a newer torch_xla. "
        "python -m torch_xla._engine.compat lists all names that torch_xla uses and the installed releases lack"
    )
