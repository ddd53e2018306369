"""``torch-xla completion``: the completion script of a shell, generated from the parsers of the commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_xla._engine.base import command_line

_HELP = """\
Print the completion script of a shell.

  bash   eval "$(torch-xla completion bash)"                  in ~/.bashrc
  zsh    eval "$(torch-xla completion zsh)"                   in ~/.zshrc, after compinit
  fish   torch-xla completion fish > ~/.config/fish/completions/torch-xla.fish

exit codes:
  0  the script was printed
  2  the command line is wrong
"""

_BASH = """\
# Completion of torch-xla, printed by `torch-xla completion bash`.
_torch_xla() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} path="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" words
    case "$path" in
{cases}
        *) words="" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _torch_xla torch-xla
"""

_ZSH = """\
# Completion of torch-xla, printed by `torch-xla completion zsh`.
_torch_xla() {{
    local -a found
    case "${{(j: :)words[2,CURRENT-1]}}" in
{cases}
    esac
    (( $#found )) && _describe torch-xla found
    [[ $CURRENT -gt 2 ]] && _files
}}
compdef _torch_xla torch-xla
"""


@dataclass(frozen=True)
class Choice:
    """A word that may follow ``path`` (a command, or a command and its action) and its description."""

    path: str
    word: str
    help: str


def choices() -> list[Choice]:
    """Return the commands, their actions, options and fixed arguments."""
    from torch_xla.cli.command_table import COMMANDS  # which names this module

    found = [Choice("", command.name, command.summary) for command in COMMANDS.values()]
    found += [Choice("", "--help", "show the help"), Choice("", "--version", "show the version")]
    found += [Choice("help", command.name, command.summary) for command in COMMANDS.values()]
    for command in COMMANDS.values():
        found += _choices_of_parser(command.name, command.make_parser(command.name))
    return found


def _choices_of_parser(path: str, parser: argparse.ArgumentParser) -> Iterator[Choice]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                yield Choice(path, name, summaries.get(name, ""))
                yield from _choices_of_parser(f"{path} {name}", child)
        elif action.help != argparse.SUPPRESS:
            summary = (action.help or "").replace("%%", "%")
            words = action.option_strings or action.choices or getattr(action, "completions", None) or ()
            yield from (Choice(path, str(word), summary if action.option_strings else "") for word in words)


def bash_script(found: Sequence[Choice]) -> str:
    """Return the script for bash."""
    cases = []
    for path, words in _by_path(found).items():
        pattern = f'"{path}"' if not path else f'"{path}"|"{path} "*'
        cases.append(f'        {pattern}) words="{" ".join(choice.word for choice in words)}" ;;')
    return _BASH.format(cases="\n".join(cases))


def zsh_script(found: Sequence[Choice]) -> str:
    """Return the script for zsh."""
    cases = []
    for path, words in _by_path(found).items():
        pattern = f'"{path}"' if not path else f'("{path}"|"{path} "*)'
        rows = " ".join(shlex.quote(f"{choice.word}:{choice.help}" if choice.help else choice.word) for choice in words)
        cases.append(f"        {pattern}) found=({rows}) ;;")
    return _ZSH.format(cases="\n".join(cases))


def fish_script(found: Sequence[Choice]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of torch-xla, printed by `torch-xla completion fish`."]
    for choice in found:
        command, _, action = choice.path.partition(" ")
        condition = "__fish_use_subcommand" if not command else f"__fish_seen_subcommand_from {command}"
        if action:
            condition += f"; and __fish_seen_subcommand_from {action}"
        word = choice.word
        if word.startswith("--"):
            option = f"-l {word[2:]}"
        elif word.startswith("-"):
            option = f"-s {word[1:]}"
        else:
            option = f"{'-f ' if not command else ''}-a {shlex.quote(word)}"
        about = f" -d {shlex.quote(choice.help)}" if choice.help else ""
        lines.append(f"complete -c torch-xla -n {shlex.quote(condition)} {option}{about}")
    return "\n".join(lines) + "\n"


def _by_path(found: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Return the choices by path, longer paths first: a shell takes the first pattern that matches."""
    paths = sorted({choice.path for choice in found}, key=lambda path: -len(path.split()))
    return {path: [choice for choice in found if choice.path == path] for path in paths}


_SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP)
    parser.add_argument("shell", choices=tuple(_SHELLS), help="the shell")
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Print the script and return the exit code."""
    options = make_parser(prog).parse_args(argv)
    print(_SHELLS[options.shell](choices()), end="")
    return 0
