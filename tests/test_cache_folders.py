"""A folder that is not empty: second runs, other flags, sources and users, leftovers, and who may write to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers import Counts, counts, run_script

import torch_xla
from tests import quickly
from torch_xla._engine.execution import compile_cache, programs

CACHE = (
    "PersistentCacheHit",
    "PersistentCacheHitUntraced",
    "PersistentCacheMiss",
    "PersistentCacheDeserializeFailure",
    "PersistentCacheWriteFailure",
)

#: Runs a program and prints how it was found.
RUN = """
    import os, warnings, torch, torch_xla
    import torch_xla.debug.metrics as met

    def run(size):
        assert torch.ones(size).to("xla").mul(3.0).sum().item() == 3 * size
        found = {name: met.counter_value("PersistentCache" + name) for name in ("Hit", "HitUntraced", "Miss")}
        print(*(f"{name}={count}" for name, count in found.items() if count))
    """


# --- same key, other value: flags ---

CHANGED_FLAGS = (
    RUN
    + """
    torch.ones(1).to("xla")  # XLA parses the flags
    os.environ["XLA_FLAGS"] += " --xla_cpu_enable_fast_math=true"
    for size in (5, 6):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run(size)
        print(*(warning.message for warning in said))
    """
)


def test_programs_are_named_by_the_flags_that_xla_has_parsed(tmp_path: Path) -> None:
    """A process whose variable changes after start-up does not give its programs to those that start with the value."""
    folder = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    fast = f"{quickly.FLAGS} --xla_cpu_enable_fast_math=true"
    first = run_script(CHANGED_FLAGS, XLA_FLAGS=quickly.FLAGS, **folder).stdout.splitlines()
    assert run_script(RUN + "\n    run(5)", XLA_FLAGS=fast, **folder).stdout == "Miss=1\n"
    assert run_script(RUN + "\n    run(5)", XLA_FLAGS=quickly.FLAGS, **folder).stdout == "Hit=1 HitUntraced=1\n"
    late = "torch_xla: XLA_FLAGS was changed after XLA had read it, and changes nothing"
    assert first[0] == "Miss=1" and first[1].startswith(late) and first[2:] == ["Miss=2", ""]


def test_the_content_of_a_flags_file_counts(tmp_path: Path) -> None:
    file, folder = tmp_path / "flags", tmp_path / "programs"
    found = []
    for extra in ("", " --xla_cpu_enable_fast_math=true"):
        file.write_text(quickly.FLAGS + extra)
        variables = {"XLA_FLAGS": str(file), "XLA_PERSISTENT_CACHE_PATH": str(folder)}
        found.append(run_script(RUN + "\n    run(5)", **variables).stdout)
    assert found == ["Miss=1\n", "Miss=1\n"]


# --- same key, other value: names of files ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, in use by this process for the test."""
    monkeypatch.setattr(compile_cache, "_files", False)
    compile_cache.initialize(tmp_path)
    return tmp_path


def run_scaled(factor: float) -> Counts:
    """What moves as a process that has compiled nothing yet runs a small program, whose result depends on its text."""
    programs.cache.clear()
    with counts() as moved:
        x = torch.ones(int(factor)).to("xla")
        assert (x + x).sum().item() == 2 * factor
    return moved


def _swap(first: Path, second: Path) -> None:
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])


@pytest.mark.parametrize("suffix", ["xla", "graph"])
def test_swapped_files_are_refused_and_replaced(folder: Path, suffix: str) -> None:
    for factor in (2, 3):
        run_scaled(factor)
    _swap(*folder.glob(f"*.{suffix}"))
    for factor in (2, 3):
        with pytest.warns(RuntimeWarning, match="is not what its name says|holds what belongs to"):
            moved = run_scaled(factor)
        assert moved["PersistentCacheDeserializeFailure"] == 1
        assert run_scaled(factor).only(*CACHE) == {"PersistentCacheHit": 1, "PersistentCacheHitUntraced": 1}


# --- same key, other value: sources ---

#: Imports a copy of the package, and changes it as the name says. ``graphs`` are those that were named on disk.
CHANGED_SOURCES = """
    import os, sys
    sys.path.insert(0, os.environ["COPY"])
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    from pathlib import Path

    engine, folder = Path(torch_xla.__file__).parent / "_engine", Path(os.environ["TO"])
    rules = engine / "lowering" / "unary.py"

    def touch():
        rules.write_bytes(rules.read_bytes())

    def edit():
        rules.write_text(rules.read_text().replace('"sinh": lax.sinh', '"sinh": lax.asinh'))

    def upgrade():
        rules.rename(rules.with_suffix(".old"))

    def lock():
        (engine / "lowering" / ".#unary.py").symlink_to("someone@machine.1234")

    def add():
        (engine / "gone.py").symlink_to("nowhere")

    def run(change, size):
        found = {}
        torch_xla.runtime.initialize_cache(folder / change.__name__)
        torch.ones(size).to("xla").sinh().sum().item()
        change()
        value = torch.ones(size).to("xla").cos().sinh().sum().item()
        unknown = met.counter_value("PersistentCacheSourcesUnknown") or 0
        print(change.__name__, len(list((folder / change.__name__).glob("*.graph"))), unknown, flush=True)

    for number, change in enumerate((lock, add, touch, edit, upgrade)):
        if os.fork() == 0:
            run(change, number + 2)
            os._exit(0)
        os.wait()
        (rules.with_suffix(".old").rename(rules) if change is upgrade else None)
    """

RUN_COPY = """
    import os, sys
    sys.path.insert(0, os.environ["COPY"])
    import torch, torch_xla
    torch_xla.runtime.initialize_cache(os.path.join(os.environ["TO"], "edit"))
    value = torch.ones(5).to("xla").cos().sinh().sum().item()
    print(abs(value / 5 - torch.ones(1).cos().asinh().item()) < 1e-6)
    """


def test_programs_are_not_named_by_files_that_changed_after_their_import(tmp_path: Path) -> None:
    """A process that imported old rules gives no program to one that imports the new ones, and no file ends it."""
    copy = tmp_path / "copy"
    shutil.copytree(Path(torch_xla.__file__).parent, copy / "torch_xla")
    variables = {"COPY": str(copy), "TO": str(tmp_path)}
    found = run_script(CHANGED_SOURCES, fresh="it imports a copy of the package", **variables).stdout.splitlines()
    assert run_script(RUN_COPY, fresh="it imports a copy of the package", **variables).stdout == "True\n"
    assert found == ["lock 2 0", "add 2 0", "touch 1 1", "edit 0 2", "upgrade 0 2"]
