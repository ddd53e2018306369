"""Write docs/reference/cli.md from the parsers of ``torch-xla``: ``python scripts/docs/command_line.py``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.argv[0] = "torch-xla"  # importing the package then starts no engine

from torch_xla.cli.command_table import GROUPS, Command  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "cli.md"

_HEAD = """\
# Command line

`torch-xla COMMAND`; `python -m torch_xla COMMAND` is the same. `torch-xla COMMAND --help` prints what this page says.

```sh
torch-xla doctor                                # check the installation
torch-xla report -o report.html train.py        # where do the steps spend their time?
torch-xla aot --target v5e:2x2 train.py         # does it fit on four TPU v5e chips?
torch-xla explain changing-shapes               # the page that a warning refers to
```

| exit code | meaning |
| --: | --- |
| 0 | success |
| 1 | a problem was found, or the script failed |
| 2 | wrong command line; `aot`, `plan`: the target's compiler is not installed |
| 3 | `aot`, `plan`: a program does not fit into the memory of the target |
| 126, 130 | `run`: workers cannot be used; Ctrl-C |

`run` and `report` exit with the code of the command or script. For completion of commands and
options, add to `~/.bashrc`:

```sh
eval "$(torch-xla completion bash)"
```
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, commands in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_command(command) for command in commands]
    return "\n".join(parts)


def _command(command: Command) -> str:
    prog = f"torch-xla {command.name}"
    parser = command.make_parser(prog)
    about, _, codes = (parser.description or "").partition("exit codes:")
    lead, _, examples = about.strip().partition("\n\n  ")
    text = f"### torch-xla {command.name}\n\n{lead.strip()}\n"
    epilog = (parser.epilog or "").partition("exit codes:")
    for block in (f"  {examples}" if examples else "", epilog[0]):
        text += _block(block)
    text += f"\n{_options(parser)}"
    found = [re.sub(r"^(\d)  ", r"`\1` ", line.strip()) for line in (codes or epilog[2]).strip().splitlines()]
    return text + (f"\nExit codes: {'; '.join(line.rstrip(';') for line in found)}.\n" if found else "")


def _block(text: str) -> str:
    """Return examples as a code block, and the paragraphs around them as text."""
    parts = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line.strip() != "examples:"]
        if lines and lines[0].startswith("  "):
            parts.append("\n```text\n" + "\n".join(line[2:] for line in lines) + "\n```\n")
        elif any(line.strip() for line in lines):
            parts.append("\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _options(parser: argparse.ArgumentParser, prefix: str = "") -> str:
    rows = ["| argument | meaning |", "| --- | --- |"] if not prefix else []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                rows.append(f"| **`{name}`** | {(child.description or '').strip().rstrip('.')} |")
                rows += _options(child, f"{name} ").splitlines()
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            rows.append(f"| `{prefix}{_argument_name(action)}` | {(action.help or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 or prefix else ""


def _argument_name(action: argparse.Action) -> str:
    value = action.metavar or "/".join(action.choices or ()) or action.dest.upper()
    if not action.option_strings:
        return f"{value}..." if action.nargs in (argparse.REMAINDER, "*", "+") else str(value)
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
