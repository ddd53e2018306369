"""The outputs that pages show: a ```text block after a ```python block is what the block prints.

Numbers with a decimal point may differ by 3 %: other CPUs round differently. The blocks of a page with
``<!-- one program -->`` run in one process.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.test_docs import _ONE_PROGRAM
from tests.support.helpers import ROOT, run_script

_PAGES = [
    "explanation/differences_from_eager.md",
    "faq.md",
    "get_started/migrating.md",
    "get_started/quickstart.md",
    "project/limitations.md",
]
_BLOCK = re.compile(r"(?<!<!-- not run -->\n)```python\n((?:.*\n)*?)```\n(?:\n```text\n((?:.*\n)*?)```)?")
_MARK = "-- end of block --"
_OPERATOR = re.compile(r"\bmm: (?=mat1)")  # torch 2.15 names the operator, earlier releases do not
_NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")


def _programs() -> list[object]:
    """Return (blocks, outputs) for each program: a page, or each block of it."""
    found: list[object] = []
    for name in _PAGES:
        text = (ROOT / "docs" / name).read_text()
        blocks = [match.groups() for match in _BLOCK.finditer(text)]
        programs = [blocks] if _ONE_PROGRAM in text else [[block] for block in blocks if block[1] is not None]
        found += [pytest.param(program, id=f"{name}-{i}") for i, program in enumerate(programs) if program]
    return found


@pytest.mark.parametrize("blocks", _programs())
def test_output_is_shown(blocks: list[tuple[str, str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "\n".join(f"{code}\nprint({_MARK!r})" for code, _ in blocks)
    output = run_script(program, TORCH_XLA_COMPILE_POLICY="auto").stdout
    printed = _OPERATOR.sub("", output).split(f"{_MARK}\n")
    for (code, shown), got in zip(blocks, printed, strict=False):
        if shown is not None:
            message = f"{code}\nprints\n{got}\nthe page shows\n{shown}"
            assert _NUMBER.sub("#", got).split() == _NUMBER.sub("#", shown).split(), message
            numbers = [float(number) for number in _NUMBER.findall(shown)]
            assert [float(number) for number in _NUMBER.findall(got)] == pytest.approx(numbers, rel=0.03), message
