"""The files that the rules read, and what of a file is prose: comments, docstrings and messages."""

from __future__ import annotations

import ast
import functools
import io
import os
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GENERATED = {"build", "dist", "site", "__pycache__", "torch_xla.egg-info"}

_CPP_PROSE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_MARKER = re.compile(r"""^[ \t]*(?:#:|#|//|\*)|(?<![\\\w])[rfbuRFBU]{0,2}["']{1,3}|["']{1,3}|//""", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One violation. ``text`` says what to write instead."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.text}"


def tracked_files(*patterns: str) -> list[Path]:
    """Return the files that match git's pathspecs, including new ones that git does not ignore.

    Outside of a repository, or without git, return the files below the root, without hidden and generated folders.
    """
    try:
        return _git_paths("ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return _walk(*patterns)


def _walk(*patterns: str) -> list[Path]:
    excluded = [pattern.rpartition(")")[2].lstrip(":!") for pattern in patterns if pattern.startswith(":")]
    wanted = [pattern for pattern in patterns if not pattern.startswith(":")]

    def is_wanted(name: str) -> bool:
        if any(name.startswith(f"{pattern}/") or fnmatch(name, pattern.replace("**/", "*")) for pattern in excluded):
            return False
        return any(fnmatch(name, pattern) for pattern in wanted)

    found = []
    for folder, folders, names in os.walk(ROOT):  # the environments below the root have a hundred times its files
        folders[:] = [name for name in folders if name not in _GENERATED and (name[0] != "." or name == ".github")]
        found += [path for name in names if is_wanted(str((path := Path(folder, name)).relative_to(ROOT)))]
    return sorted(found)


def changed_files() -> list[Path]:
    """The files that differ from the last commit, new ones included."""
    return _git_paths("diff", "--name-only", "HEAD") + _git_paths("ls-files", "--others", "--exclude-standard")


def _git_paths(command: str, *options: str) -> list[Path]:
    run = subprocess.run(["git", command, "-z", *options], cwd=ROOT, check=True, capture_output=True, text=True)
    return sorted(path for name in set(run.stdout.split("\0")) - {""} if (path := ROOT / name).is_file())


@functools.cache
def _upstream_names() -> frozenset[tuple[str, str]]:
    """Pairs of a package and a name that a module of it has in upstream's public interface."""
    (listing,) = (ROOT / "tests").rglob("upstream_names.txt")
    pairs = (line.split("(")[0].split(maxsplit=1) for line in listing.read_text().splitlines())
    return frozenset((module.rpartition(".")[0], name) for module, name in pairs)


def is_upstream(path: Path, name: str) -> bool:
    """Whether a module's class or function is one of upstream's, re-exported by a public module of the same package."""
    package = ".".join(path.parent.relative_to(ROOT).parts) if path.is_relative_to(ROOT) else ""
    return (package, name) in _upstream_names()


def module_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that a Python module defines at its top level, also below `if` and `try`."""
    yield from (node for node in _top_level(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def module_classes(path: Path) -> Iterator[ast.ClassDef]:
    """The classes that a Python module defines at its top level, also below `if` and `try`."""
    yield from (node for node in _top_level(path) if isinstance(node, ast.ClassDef))


@functools.cache
def _top_level(path: Path) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        for node in ast.iter_child_nodes(pending.pop(0)):
            if isinstance(node, ast.If | ast.Try | ast.With):
                pending.append(node)
            elif isinstance(node, ast.stmt):
                found.append(node)
    return found


def prose(path: Path) -> str:
    """The text of a file with everything but comments and strings blanked; lines and columns stay as they are."""
    text = path.read_text(errors="replace")
    if path.suffix == ".py":
        spans = list(_python_spans(text))
    elif path.suffix in {".cpp", ".h"}:
        spans = [match.span() for match in _CPP_PROSE.finditer(text)]
    else:
        return text
    blank = list(re.sub(r"[^\n]", " ", text))
    for start, end in spans:
        blank[start:end] = _MARKER.sub(lambda match: " " * len(match[0]), text[start:end])
    return "".join(blank)


def _python_spans(text: str) -> Iterator[tuple[int, int]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Since Python 3.12 the text of an f-string is a token of its own.
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
