"""The pages for contributors name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

PAGES = sorted((ROOT / "docs" / "project").glob("*.md"))

_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:torch_xla|tests|benchmarks|scripts|examples|docs)/[\w./-]*")
_FILE = re.compile(r"(?:[\w-]+/)*[\w-]+\.(?:py|cpp|h)")
_FOLDERS = "torch_xla", "tests", "benchmarks", "scripts", "examples"


def _files() -> set[str]:
    """Return the files of the repository, as ``/path``, so that a name matches from a slash on."""
    found = (path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.*") if "__pycache__" not in path.parts)
    return {f"/{path.relative_to(ROOT)}" for path in found}


def _missing(text: str, files: set[str]) -> list[str]:
    names = {name.partition(":")[0] for name in _CODE.findall(text)}
    paths = [name for name in names if _PATH.fullmatch(name) and not (ROOT / name).exists()]
    modules = [
        name
        for name in names
        if _FILE.fullmatch(name) and not _PATH.fullmatch(name) and not any(f.endswith(f"/{name}") for f in files)
    ]
    return sorted(paths + modules)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_named_files_exist(page: Path) -> None:
    """Each path and each module file in backticks exists."""
    assert _missing(page.read_text(), _files()) == []


def test_a_wrong_name_is_found() -> None:
    text = "`torch_xla/_engine/no_such.py`, `no_such.cpp`, `graph/no_such.h`, `torch_xla/_engine`, `graph/graph.cpp`"
    assert _missing(text, _files()) == ["graph/no_such.h", "no_such.cpp", "torch_xla/_engine/no_such.py"]
