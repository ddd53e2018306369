"""``torch-xla explain``: print the page about an error or a warning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_xla._engine import explain
from torch_xla._engine.base import command_line

_HELP = """\
Explain an error or a warning: the page that its last line names. Works offline.

exit codes:
  0  the page was printed
  2  there is no such page
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP)
    pages = parser.add_argument("page", nargs="?", metavar="SLUG", help="the page; without it, list all pages")
    pages.completions = list(explain.page_titles())  # type: ignore[attr-defined]  # for completion.py
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Print a page, or the list of pages, and return the exit code."""
    options = make_parser(prog).parse_args(argv)
    if options.page is None:
        titles = explain.page_titles()
        width = max(map(len, titles), default=0)
        print("\n".join(f"{slug:<{width}}  {title}" for slug, title in titles.items()))
        return 0
    try:
        _print_page(explain.read_page(options.page))
    except explain.UnknownPageError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _print_page(text: str) -> None:
    """Print Markdown: formatted in a terminal, unchanged in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(console.width, 100))
