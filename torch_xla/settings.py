"""The environment variables of torch_xla: ``python -m torch_xla.settings`` prints each with its value and meaning."""

from __future__ import annotations

import textwrap

from torch_xla._engine.base.settings import settings, variables

__all__ = ["main", "settings", "table"]

_WIDTH = 120  # terminal columns


def table() -> str:
    """Return one paragraph per variable: name, value and its source, then the meaning and the expected format.

    An invalid value is shown as its error, so that the table is always complete.
    """
    lines = ["Environment variables of torch_xla. A value marked * is set in the environment.", ""]
    for variable in variables():
        source = variable.source()
        try:
            value = _show(variable.read())
        except ValueError as error:
            value = f"ERROR: {error}"
        default = "" if source is None else f"   (default: {variable.default or 'unset'})"
        lines.append(f"{'*' if source else ' '} {variable.name} = {value}{default}")
        also = f" Also read as {', '.join(variable.aliases)}." if variable.aliases else ""
        also += f" Replaces {', '.join(variable.deprecated)} (deprecated)." if variable.deprecated else ""
        text = f"{variable.meaning}. Expects {variable.kind.form}.{also}"
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _show(value: object) -> str:
    """Format a value as it is written in the environment."""
    if value is None or value == "":
        return "(unset)"
    if isinstance(value, bool):
        return str(int(value))
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main() -> None:
    """Print the table to standard output."""
    print(table())


if __name__ == "__main__":
    main()
