"""What torch_xla uses of torch and jax that they keep for themselves: only by compat, and all of it is there."""

from __future__ import annotations

import ast
import datetime
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch

from tests.support.helpers import run_script
from tests.tools import torch_versions, version_grid, version_matrix
from torch_xla._engine.compat import __main__ as command
from torch_xla._engine.compat import public_names, versions
from torch_xla._engine.compat.private_api import ENTRIES, MissingPrivateApiError, PrivateApi

PACKAGE = Path(__file__).parents[2] / "torch_xla"
COMPAT = PACKAGE / "_engine" / "compat"
CSRC = PACKAGE / "_engine" / "recorder" / "csrc"

#: Names with an underscore in front that are documented all the same.
DOCUMENTED = {
    "_getframe": "sys",
    "_current_frames": "sys",
    "_exit": "os: ends the process immediately",
    "_make": "namedtuple",
    "_fields": "namedtuple",
    "_args_from_interpreter_flags": "subprocess: used by multiprocessing and importlib for the same purpose",
    "_actions": "argparse: read by shtab and argcomplete, as are the next two",
    "_SubParsersAction": "argparse",
    "_choices_actions": "argparse",
}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.alias(asname=str(name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _used(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """(line, private name, whether it is certainly not ours)."""
    foreign = {"torch", "jax", "jaxlib", "xprof"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if _is_private(name):
                yield node.lineno, name, ast.unparse(value).split(".")[0] in foreign
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("torch_xla"):
                parts = [*module.split("."), *(alias.name for alias in names)]
                yield from ((node.lineno, part, True) for part in parts if _is_private(part))
            case ast.Import(names=names):
                parts = [p for alias in names if not alias.name.startswith("torch_xla") for p in alias.name.split(".")]
                yield from ((node.lineno, part, True) for part in parts if _is_private(part))
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                if _is_private(name):
                    yield node.lineno, name, False


def test_only_compat_touches_private_names_of_torch_and_jax() -> None:
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if COMPAT not in path.parents}
    ours = {name for tree in trees.values() for name in _defined(tree)} | {"_torch_xla"}
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path, tree in trees.items()
        for line, name, foreign in _used(tree)
        if name not in DOCUMENTED and (foreign or name not in ours)
    ]
    assert not found


#: Headers and namespaces that torch does not document for extensions; torch::jit::Stack is part of boxed kernels.
PRIVATE_CPP = re.compile(
    r"torch/csrc/|ATen/native/|_native\.h|/detail/|flat_hash_map|AutogradState"
    r"|\bat::(native|detail)::|\btorch::autograd::|\btorch::jit::(?!Stack\b|last\b|peek\b|pop\b|push|drop\b)"
)


def test_only_compat_h_touches_private_headers_of_torch() -> None:
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in (*CSRC.rglob("*.cpp"), *CSRC.rglob("*.h"))
        if path.parent.name != "compat"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE_CPP.search(line.split("//")[0])
    ]
    assert not found


@pytest.mark.parametrize("entry", command.load_entries(), ids=lambda entry: entry.path)
def test_each_entry_is_there(entry: PrivateApi) -> None:
    assert not entry.is_missing, entry.without
    assert entry.purpose and entry.without


def test_an_entry_that_is_missing_says_what_it_is_for() -> None:
    gone = PrivateApi("torch._C", "_nothing.of_the_kind", "to test", "nothing happens")
    ENTRIES.remove(gone)
    assert gone.resolve_or_none() is None
    with pytest.raises(
        MissingPrivateApiError, match=r"torch \S+ has no torch\._C\._nothing\.of_the_kind; needed: to test"
    ):
        gone.resolve()
    with pytest.warns(RuntimeWarning, match=r"has no torch\._C\._nothing\.of_the_kind: nothing happens"):
        gone.wrap(lambda original: original())


# A process in which a module of the engine is changed before torch_xla is imported.
BEFORE = """
import sys, types, warnings
root = {root!r}
parents = ["torch_xla", "torch_xla._engine"]
for name in parents:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root + "/" + name.replace(".", "/")]
{before}
for name in parents:
    del sys.modules[name]
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_xla
for warning in caught:
    print(warning.message)
x = torch.ones(3, device="xla", requires_grad=True)
(x * 2).sum().backward()
print(x.grad.tolist(), torch.xla.device_count() > 0)
print(torch.nn.Linear(2, 2).to("xla").weight.device)
"""

# A torch and a jax without any of the names that recording does not need.
WITHOUT = """
from torch_xla._engine.compat.private_api import PrivateApi
needed = ("_dispatch_has_kernel_for_dispatch_key", "ops.aten.add.Tensor._schema")
find = PrivateApi.resolve_or_none
PrivateApi.resolve_or_none = lambda self: find(self) if self.name in needed else None
"""


def test_importing_and_recording_need_few_private_names() -> None:
    out = run_script(
        BEFORE.format(root=str(PACKAGE.parent), before=WITHOUT), imports="changes torch_xla before its import"
    ).stdout
    assert "[2.0, 2.0, 2.0] True\nxla:0" in out
    for name in ("_apply", "_BaseDataLoaderIter.__next__", "core_aten_decompositions", "_get_restore_location"):
        assert re.search(rf"has no \S*{name}: \w", out), (name, out)


def test_the_command_lists_releases_and_entries() -> None:
    text = "\n".join(command.report_lines())
    assert f"torch {torch.__version__}: " in text
    assert all(entry.path in text for entry in ENTRIES)
    assert "MISSING" not in text
    assert command.missing_entries() == []
    modules = {path.stem for path in COMPAT.glob("*.py") if "= PrivateApi(" in path.read_text()}
    assert modules <= {name.rpartition(".")[2] for name in sys.modules if name.startswith("torch_xla._engine.compat.")}


def test_the_command_lists_public_names_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(jax.scipy.special, "i1")
    lines = list(command.report_lines())
    used_by = "torch_xla/_engine/lowering/rules/special.py"
    assert f"MISSING    jax.scipy.special.i1: used by {used_by}" in lines
    assert public_names.missing_names() == {"jax.scipy.special.i1": (used_by,)}


@pytest.mark.parametrize(
    ("release", "is_tested"), [("2.13.0+cpu", True), ("2.15.1", True), ("2.16.0", False), ("3.0.0a0+git1", False)]
)
def test_a_release_is_tested_by_its_minor_number(release: str, is_tested: bool) -> None:
    assert versions.is_tested("torch", release) is is_tested


def test_an_untested_release_gets_one_warning_at_import() -> None:
    known = (
        "from torch_xla._engine.compat import versions; versions.TESTED = versions.TESTED | {'torch': ('1.0', '1.1')}"
    )
    out = run_script(
        BEFORE.format(root=str(PACKAGE.parent), before=known), imports="changes torch_xla before its import"
    ).stdout
    assert out.count("torch_xla was not tested with") == 1
    assert f"torch_xla was not tested with torch {torch.__version__} (tested: torch 1.0 to 1.1)" in out


def test_an_untested_release_without_a_name_that_importing_needs_is_explained() -> None:
    before = """
from torch_xla._engine.compat import versions
versions.TESTED = versions.TESTED | {'jax': ('0.1', '0.2')}
import jax.scipy.special
del jax.scipy.special.i1
"""
    done = run_script(
        BEFORE.format(root=str(PACKAGE.parent), before=before),
        imports="changes torch_xla before its import",
        check=False,
    )
    message = done.stderr.splitlines()[-1]
    assert f"ImportError: torch_xla cannot be imported with jax {jax.__version__}: AttributeError: " in message
    assert "do not exist there: jax.scipy.special.i1 (used by torch_xla/_engine/lowering/rules/special.py)." in message
    assert "Install a tested release (jax 0.1 to 0.2), or a newer torch_xla." in message


def test_the_grid_keeps_the_latest_run_of_each_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "versions.md"
    table.write_text("before\n\n<!-- grid -->\n<!-- end of grid -->\n\nafter\n")
    monkeypatch.setattr(version_grid, "TABLE", table)
    day = datetime.date(2026, 1, 2)
    torch_versions.note(["2.15.0", "3.13.0", "0.12.0.1"], "all", "1 passed, 9 failed", day)
    torch_versions.note(["2.11.0+cpu", "3.11.7", "0.10.0"], "core", "2 passed, 0 failed, 1 skipped", day)
    torch_versions.note(["2.15.0", "3.13.0", "0.12.0.1"], "all", "10 passed, 0 failed", day)
    torch_versions.note(["2.15.0", "3.13.0", "0.12.0.1"], "all", "no result", day)
    assert table.read_text() == (
        "before\n\n<!-- grid -->\n\n"
        "| torch | jax | Python 3.11 | Python 3.13 |\n| --- | --- | --- | --- |\n"
        "| 2.11 | 0.10 | core: 2 passed, 0 failed, 1 skipped, 2026-01-02 | not run |\n"
        "| 2.15 | 0.12 | not run | all: 10 passed, 0 failed, 2026-01-02 |\n"
        "\n<!-- end of grid -->\n\nafter\n"
    )
    assert [run.tests for run in version_grid.read_runs(table.read_text()) if run.passed] == ["core", "all"]


def test_the_matrix_has_each_tested_release() -> None:
    for name, column in (("torch", "torch"), ("jax", "jax"), ("Python", "python")):
        cells = {versions.minor_version(getattr(cell, column)) for cell in version_matrix.MATRIX}
        assert cells == set(versions.TESTED[name])
    full = [cell for cell in version_matrix.MATRIX if cell.full]
    assert full == [version_matrix.MATRIX[0], version_matrix.MATRIX[-1]]  # the oldest and the newest
    assert version_matrix.find_python("2.0") is None


def test_the_bounds_of_pyproject_follow_the_matrix() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    first, last = versions.TESTED["jax"][0], versions.TESTED["jax"][-1]
    major, minor = last.split(".")
    assert f"jax>={first},<{major}.{int(minor) + 1}" in project["dependencies"]
    assert f"torch>={versions.TESTED['torch'][0]}" in project["dependencies"]
    assert project["requires-python"] == f">={versions.TESTED['Python'][0]}"


def test_what_an_earlier_release_does_not_need_is_not_missed() -> None:
    """Importing torch_xla beside it says nothing; a name that should be there is told of."""
    known = len(ENTRIES)
    try:
        PrivateApi("torch", "no_such_name", "tests", "nothing", since="99.0").wrap(lambda original: None)
        with pytest.warns(RuntimeWarning, match=r"has no torch\.no_such_name: nothing"):
            PrivateApi("torch", "no_such_name", "tests", "nothing").wrap(lambda original: None)
    finally:
        del ENTRIES[known:]
