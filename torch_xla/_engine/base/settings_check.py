"""Check the environment once, when torch_xla is imported: invalid values raise, misspelt names warn.

not a setting, near the name of one           warning: did you mean ...
not a setting, with a prefix of torch_xla     warning
a variable of upstream's torch_xla            warning that names the replacement
a value that cannot be parsed, a bad folder   one ValueError for all of them
other names, such as XLA_FLAGS                ignored
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch_xla._engine.base.settings import Settings, variables

#: Prefixes of names that look like torch_xla's, and the variables with these prefixes that other software reads.
PREFIXES = ("XLA_", "PT_XLA_", "TORCH_XLA_", "TORCHXLA_", "XRT_", "PJRT_", "CPU_NUM_")
OTHERS = (
    "XLA_FLAGS", "XLA_PYTHON_CLIENT_", "XLA_CLIENT_", "TORCH_XLA_TEST_", "PJRT_NPROC", "PJRT_LIBRARY_PATH",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
)  # fmt: skip

#: Variables that upstream reads and this package does not, with the replacement.
UPSTREAM = {
    "XLA_USE_SPMD": "call torch_xla.runtime.use_spmd()",
    "XLA_AUTO_SPMD_MESH": "mark tensors with torch_xla.distributed.spmd.mark_sharding",
    "XLA_STABLEHLO_COMPILE": "remove it: programs are always StableHLO",
    "XLA_DISABLE_FUNCTIONALIZATION": "remove it: views are tracked by the recorder",
}
_SIMILARITY = 0.85


def check_environment() -> None:
    """Warn of each variable that looks like a setting but is none; once per job, not in its child processes.

    Raises:
        ValueError: Variables have invalid values. The message names all of them.
    """
    environment = dict(os.environ)
    invalid = [*invalid_values(environment), *_unusable_folders(environment)]
    if invalid:
        lines = [*invalid, "See: torch-xla explain invalid-setting"]
        raise ValueError("\n  ".join(lines))
    if multiprocessing.parent_process() is None:
        from torch_xla._engine.base import messages  # imports jax; the doctor uses this module without it

        for name, advice in unknown_variables(environment):
            headline = f"the environment variable {name} is not a setting; {advice}"
            messages.warn(messages.compose(headline, page="unknown-setting"))


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the variables that are probably meant for torch_xla but are not settings, each with advice."""
    known = {name: variable for variable in variables() for name in variable.spellings}
    candidates = [name for name in known if name.startswith(PREFIXES)]
    for name in sorted(environment):
        if name in known or not name.startswith(PREFIXES) or name.startswith(OTHERS):
            continue
        near = difflib.get_close_matches(name, candidates, n=1, cutoff=_SIMILARITY)
        if name in UPSTREAM:
            yield name, UPSTREAM[name]
        elif near:
            is_old = near[0] in known[near[0]].deprecated
            yield (
                name,
                f"did you mean {known[near[0]].name} (formerly {near[0]})?" if is_old else f"did you mean {near[0]}?",
            )
        elif name.startswith(("TORCH_XLA_", "TORCHXLA_", "PT_XLA_")):
            yield name, "`torch-xla settings` lists them"


def invalid_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Return the error of each setting whose value in the environment cannot be parsed."""
    for variable in variables():
        if variable.source(environment) is None:  # its default is valid where it is used
            continue
        try:
            variable.parse(environment)
        except ValueError as error:
            yield str(error)


def _unusable_folders(environment: Mapping[str, str]) -> Iterator[str]:
    folder = environment.get("XLA_PERSISTENT_CACHE_PATH")
    if not folder or _is_read_only(environment):
        return
    try:
        Path(folder).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        yield f"environment variable XLA_PERSISTENT_CACHE_PATH={folder!r} is not a usable folder ({reason})"


def _is_read_only(environment: Mapping[str, str]) -> bool:
    try:
        return Settings.XLA_PERSISTENT_CACHE_READ_ONLY.parse(environment)
    except ValueError:  # invalid_values reports it
        return True
