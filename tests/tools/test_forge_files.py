"""Workflows call targets that exist, with limited permissions; issue forms have all fields that the forge requires."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.scripts import ROOT
from tests.tools import version_matrix

yaml = pytest.importorskip("yaml")

FORGE = ROOT / ".github"
WORKFLOWS = sorted(FORGE.glob("workflows/*.yml"))
FORMS = sorted(path for path in FORGE.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")


def _load(path: Any) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_files() -> None:
    assert {path.stem for path in WORKFLOWS} == {"lint", "test", "docs", "versions"}
    assert len(FORMS) >= 3
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "PULL_REQUEST_TEMPLATE.md"):
        assert (FORGE / name).stat().st_size > 200


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path: Any) -> None:
    workflow = _load(path)
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] and job["runs-on"]
        commands = [step["run"] for step in job["steps"] if "run" in step]
        called = [command.split()[1] for command in commands if command.startswith("make ")]
        assert called and set(called) <= targets
        for script in re.findall(r"scripts/\S+", " ".join(commands)):
            assert (ROOT / script).is_file()


def test_versions_of_matrix() -> None:
    """Each cell of the matrix has a job."""
    jobs = _load(FORGE / "workflows" / "versions.yml")["jobs"]["cell"]["strategy"]["matrix"]["cell"]
    assert jobs == [cell.name for cell in version_matrix.MATRIX]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form(path: Any) -> None:
    form = _load(path)
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names)) and all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
