"""A checkpoint folder that is not empty: a second run, lower steps, files of ended processes, a umask."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from tests.support.helpers import run_script
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _checksummed_storage, _leftovers

#: (steps of the first run, steps of the second run, max_to_keep, remaining steps).
RUNS = [
    ([10, 20, 30], [2, 4], 3, [2, 4, 30]),  # restarted at a lower step
    ([10, 20, 30], [2], 1, [2]),
    ([10, 20, 30], [30], 2, [20, 30]),  # the last step again
    ([10, 20, 30], [10], 2, [10, 30]),  # a repeated old step is the newest checkpoint
    ([10, 20, 30], [40], 3, [20, 30, 40]),
    ([1, 2], [3], 0, [1, 2, 3]),
]


def _manager(path: Path | str, **options: int) -> CheckpointManager:
    return CheckpointManager(str(path), save_interval=1, chkpt_on_preemption=False, **options)


def _restored(path: Path | str, step: int) -> int:
    state = {"x": torch.zeros(2)}
    _manager(path).restore(step, state)
    return int(state["x"][0])


@pytest.mark.filterwarnings("ignore:Detected an existing checkpoint:UserWarning")  # torch's, of a URL
@pytest.mark.parametrize("url", [False, True], ids=["folder", "url"])
@pytest.mark.parametrize(("first", "second", "keep", "left"), RUNS)
def test_second_run(tmp_path: Path, url: bool, first: list[int], second: list[int], keep: int, left: list[int]) -> None:
    path = f"memory://{tmp_path.name}-{keep}-{second[0]}" if url else tmp_path
    manager = _manager(path)
    for step in first:
        manager.save(step, {"x": torch.full((2,), step)})
    manager = _manager(path, max_to_keep=keep)
    for step in second:
        assert manager.save_async(step, {"x": torch.full((2,), 100 + step)})
        manager.join()
        assert step in manager.all_steps()
        assert _restored(path, step) == 100 + step
    assert manager.all_steps() == left


def test_failed_save_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that fails after writing a file; an earlier checkpoint of the step remains."""
    manager = _manager(tmp_path)
    manager.save(1, {"x": torch.ones(2)})
    plain = _checksummed_storage._Writer.write_data

    def write_data(self: _checksummed_storage._Writer, plan: object, planner: object) -> object:
        plain(self, plan, planner)  # type: ignore[arg-type]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_checksummed_storage._Writer, "write_data", write_data)
    for step in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            manager.save(step, {"x": torch.zeros(2)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"] and _restored(tmp_path, 1) == 1


#: Forks a writer that is killed, or waits, during a save.
WRITER = """
import os, signal, sys, time, torch, torch_xla
from pathlib import Path
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _checksummed_storage

folder = Path(os.environ["WHERE"])
made = lambda: CheckpointManager(str(folder), save_interval=1, chkpt_on_preemption=False)
plain = _checksummed_storage._Writer.write_data

def forked(then):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        def write_data(self, plan, planner):
            plain(self, plan, planner)
            os.write(write, b"x")
            then()
        _checksummed_storage._Writer.write_data = write_data
        made().save(5, {"x": torch.ones(3)})
        os._exit(0)
    os.read(read, 1)
    return pid

names = lambda: sorted(p.name for p in folder.iterdir())
made().save(3, {"x": torch.ones(3)})
os.waitpid(forked(lambda: os.kill(os.getpid(), signal.SIGKILL)), 0)
assert names() == [".5.writing", "3"], names()
made()
assert names() == ["3"], names()
alive = forked(lambda: time.sleep(1000))
made()
assert names() == [".5.writing", "3"], "its writer is alive"
os.kill(alive, signal.SIGKILL)
os.waitpid(alive, 0)
lock = folder / ".5.writing" / ".writer"
machine = lock.read_text()
lock.write_text("of another machine")
made()
assert names() == [".5.writing", "3"], "the writer is on another machine or unknown"
lock.write_text(machine)
made()
assert names() == ["3"] and sorted(p.name for p in (folder / "3").iterdir() if p.name == ".writer") == []
"""


def test_leftovers_of_killed_writers(tmp_path: Path) -> None:
    run_script(WRITER, WHERE=str(tmp_path))


def test_folder_in_use_by_another_manager(tmp_path: Path) -> None:
    with _leftovers.lock_folder(str(tmp_path / ".7.writing")):
        _manager(tmp_path)
        assert (tmp_path / ".7.writing").is_dir()
    _manager(tmp_path)
    assert not (tmp_path / ".7.writing").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_are_those_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        manager = _manager(tmp_path / "run", max_to_keep=1)
        for step in (1, 2):
            manager.save(step, {"x": torch.ones(2), "table": [1]})
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert modes == {0o666 & ~umask} and _restored(tmp_path / "run", 2) == 1


def test_folder_with_unrelated_files(tmp_path: Path) -> None:
    """Other files and folders are neither listed nor removed."""
    others = ["notes.txt", ".x.writing", ".5.before.txt", "7x"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "9").mkdir()  # no metadata: incomplete
    manager = _manager(tmp_path, max_to_keep=1)
    for step in (1, 2):
        manager.save(step, {"x": torch.ones(1)})
    assert manager.all_steps() == [2]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "2", "9"])
    shutil.rmtree(tmp_path / "9")
