"""The programs of the documents that need other libraries: ``<!-- with clients -->``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.clients import checks

_BLOCK = re.compile(r"<!-- with clients -->\n```python\n((?:.*\n)*?)```$", re.MULTILINE)


def _programs() -> list[object]:
    texts = {path.name: path.read_text() for path in sorted((checks.ROOT / "docs").rglob("*.md"))}
    return [
        pytest.param(block[1], id=f"{name}:{text[: block.start(1)].count(chr(10)) + 1}")
        for name, text in texts.items()
        for block in _BLOCK.finditer(text)
    ]


def test_there_are_some() -> None:
    assert len(_programs()) >= 5


@pytest.mark.parametrize("program", _programs())
def test_program(program: str, tmp_path: Path) -> None:
    for name in (
        "lightning",
        "accelerate",
        "transformers",
        "timm",
        "ignite",
        "safetensors",
        "tensorboard",
        "torchdata",
    ):
        if re.search(rf"^(from|import) (torch\.utils\.)?{name}\b", program, re.MULTILINE):
            checks.library(name)
    (tmp_path / "program.py").write_text(program)
    checks.run([sys.executable, str(tmp_path / "program.py")], cwd=tmp_path)  # it may write files
