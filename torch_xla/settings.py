"""The environment variables of torch_xla: ``torch-xla settings`` prints each with its value and meaning."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from torch_xla._engine.base import command_line
from torch_xla._engine.base.settings import Setting, settings, variables

__all__ = ["main", "settings", "table"]

_WIDTH = 120  # maximum width of the output, in columns
_HELP = """\
Print the environment variables that torch_xla reads, with their values and meanings, grouped by purpose.

A variable marked * is set in the environment. Imports neither torch nor jax.

exit codes:
  0  all values are valid
  1  a value is invalid
  2  the command line is wrong, or a NAME is not a variable of torch_xla
"""

#: Variables by purpose, the most used first. A variable that is in none of them is in `other`, before the legacy ones.
_GROUPS: dict[str, tuple[str, ...]] = {
    "Devices": ("PJRT_DEVICE", "CPU_NUM_DEVICES", "CUDA_VISIBLE_DEVICES", "TPU_ACCELERATOR_TYPE"),
    "Compilation and its cache": (
        "TORCH_XLA_COMPILE_POLICY", "XLA_PERSISTENT_CACHE_PATH", "TORCH_XLA_PERSISTENT_CACHE_MAX_GB",
        "XLA_PERSISTENT_CACHE_READ_ONLY", "TORCH_XLA_CACHE_DIR", "XDG_CACHE_HOME", "XLA_COMPILATION_CACHE_SIZE",
        "TORCH_XLA_CPU_KERNELS", "TORCH_XLA_KEEP_HEAP",
    ),
    "Messages and reports": (
        "TORCH_XLA_LOGS", "TORCH_XLA_EXPLAIN_RECOMPILATIONS", "TORCH_XLA_WARN_FALLBACK", "TORCH_XLA_TRACEBACK",
        "PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL", "PT_XLA_DEBUG_FILE", "PT_XLA_DEBUG_MAX_FRAME", "XLA_METRICS_FILE",
        "XLA_METRICS_SAMPLES", "XLA_METRICS_PERCENTILES", "XLA_EMIT_STEPLOG", "RATE_TRACKER_SMOOTHING",
    ),
    "Steps": ("TORCH_XLA_AUTO_SYNC", "XLA_SYNC_WAIT", "XLA_TRIM_GRAPH_SIZE", "XLA_NO_SPECIAL_SCALARS"),
    "Dtypes": (
        "XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_F16", "XLA_DOWNCAST_FP16", "XLA_USE_32BIT_LONG",
    ),
    "Distributed jobs": (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCH_XLA_RENDEZVOUS_FILE", "TORCH_XLA_RENDEZVOUS_TIMEOUT", "TORCH_XLA_GRACE_PERIOD",
        "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "TORCH_XLA_DIST", "XLA_UNEVEN_HEARTBEAT_TIMEOUT",
        "XLA_EVEN_HEARTBEAT_TIMEOUT",
    ),
    "Debugging": (
        "TORCH_XLA_CHECK_INDICES", "XLA_IR_DEBUG", "XLA_HLO_DEBUG", "SAVE_GRAPH_FMT", "XLA_SAVE_TENSORS_FILE",
        "XLA_SAVE_TENSORS_FMT", "XLA_SYNC_TENSORS_OPBYOP", "XLA_GET_TENSORS_OPBYOP", "XLA_USE_EAGER_DEBUG_MODE",
        "MODELCMP_SAVEDIR",
    ),
}  # fmt: skip
_LEGACY = ("XRT_TPU_CONFIG", "XRT_DEVICE_MAP", "XRT_WORKERS", "COLAB_TPU_ADDR")


def groups() -> dict[str, list[Setting[Any]]]:
    """Return all variables by purpose: the most used groups first, the legacy variables last."""
    known = {variable.name: variable for variable in variables()}
    named = {name for names in (*_GROUPS.values(), _LEGACY) for name in names}
    ordered: dict[str, Iterable[str]] = {**_GROUPS, "Other": [name for name in known if name not in named]}
    ordered["Legacy (XRT)"] = _LEGACY
    found = {title: [known[name] for name in names if name in known] for title, names in ordered.items()}
    return {title: members for title, members in found.items() if members}


def table(names: Sequence[str] = (), *, only_set: bool = False) -> str:
    """Return one paragraph per variable: name, value and its source, then the meaning and the expected format.

    An invalid value is shown as its error, so that the table is always complete.

    Args:
      names: the variables to show, also by an alias; without any, all of them.
      only_set: show only variables that the environment sets.

    Raises:
      KeyError: A name is not a variable of torch_xla. The message names the closest one.
    """
    chosen = {_find(name).name for name in names}
    lines = ["Environment variables of torch_xla. A variable marked * is set in the environment."]
    for title, members in groups().items():
        shown = [v for v in members if (not chosen or v.name in chosen) and (v.source() or not only_set)]
        lines += ["", title] if shown else []
        for variable in shown:
            lines += _paragraph(variable)
    return "\n".join(lines)


def invalid_variables() -> list[str]:
    """Return the names of the variables whose value in the environment is invalid."""
    return [variable.name for variable in variables() if isinstance(_read(variable), ValueError)]


def _find(name: str) -> Setting[Any]:
    known = {spelling: variable for variable in variables() for spelling in variable.spellings}
    try:
        return known[name.upper()]
    except KeyError:
        near = difflib.get_close_matches(name.upper(), known, 1)
        advice = f"Did you mean {near[0]}?" if near else "`torch-xla settings` lists the variables"
        raise KeyError(f"{name} is not a variable of torch_xla. {advice}") from None


def _paragraph(variable: Setting[Any]) -> list[str]:
    source, value = variable.source(), _read(variable)
    shown = f"ERROR: {value}" if isinstance(value, ValueError) else _show(value)
    default = "" if source is None else f"   (default: {variable.default or 'unset'})"
    text = f"{variable.meaning}."
    if variable.kind.form != "a string":
        text += f" Expects {variable.kind.form}."
    if variable.aliases:
        text += f" Also read as {', '.join(variable.aliases)}."
    if variable.deprecated:
        text += f" Replaces {', '.join(variable.deprecated)} (deprecated)."
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    lines = textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    return [f"{'*' if source else ' '} {variable.name} = {shown}{default}", *lines]


def _read(variable: Setting[Any]) -> object:
    """Return the value of a variable, or the error that reading it raises."""
    try:
        return variable.read()
    except ValueError as error:
        return error


def _show(value: object) -> str:
    """Format a value as it is written in the environment."""
    if value in (None, "", ()):
        return "(unset)"
    if isinstance(value, bool):
        return str(int(value))
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP)
    parser.add_argument("--set", action="store_true", dest="only_set", help="only variables that are set")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these variables")
    return parser


def main(argv: Sequence[str] = (), prog: str = "python -m torch_xla.settings") -> int:
    """Print the table to standard output and return the exit code.

    Args:
      argv: arguments after the command's name; default: those of the process.
      prog: name of the command in messages.
    """
    options = make_parser(prog).parse_args(argv)
    try:
        print(table(options.names, only_set=options.only_set))
    except KeyError as error:
        print(f"{prog}: {error.args[0]}", file=sys.stderr)
        return 2
    return 1 if invalid_variables() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
