"""The stored notebooks have the outputs of one complete run, and no error. `make notebooks` runs them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _code(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_notebooks_exist() -> None:
    assert len(NOTEBOOKS) >= 6


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_outputs_are_of_one_run(path: Path) -> None:
    cells = _code(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    text = json.dumps(outputs)
    assert "ipykernel_" not in text and "/tmp/" not in text  # no paths of the machine that ran it


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_cells_can_be_read(path: Path) -> None:
    for cell in _code(path):
        source = "".join(cell["source"])
        ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%")))
        assert source == source.strip()
