"""Snapshots of one process: which tier serves a restore, what is retained, and what a failed write leaves."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla.debug.metrics as met
from tests.support.helpers import run_script
from torch_xla.experimental.distributed_checkpoint import (
    CheckpointError,
    CheckpointManager,
    _peer_copy,
    _snapshots,
    _tier_reader,
)


def _manager(path: Path, **options: Any) -> CheckpointManager:
    options = {"save_interval": 4, "local_path": str(path / "local"), "local_save_interval": 2} | options
    return CheckpointManager(str(path / "remote"), chkpt_on_preemption=False, **options)


def _train(manager: CheckpointManager, steps: range) -> None:
    for step in steps:
        manager.save_async(step, {"x": torch.full((3,), step), "step": step})
    manager.join()


def _restore(manager: CheckpointManager, step: int | None = None) -> tuple[int | None, str]:
    """Restore; return the step, and the tier by its counter."""
    met.clear_all()
    state = {"x": torch.zeros(3, dtype=torch.int64), "step": -1}
    if step is None:
        step = manager.restore_latest(state)
    else:
        manager.restore(step, state)
    assert step is None or (state["step"] == step and state["x"].tolist() == [step] * 3)
    read = [tier for tier in ("Local", "Peer", "Remote") if met.counter_value(f"CheckpointReads{tier}")]
    return step, " ".join(read)


def _snapshot_folder(path: Path, step: int) -> Path:
    (found,) = path.glob(f"local/*/0/{step}")
    return found


def test_newest_step_of_all_tiers(tmp_path: Path) -> None:
    assert _restore(_manager(tmp_path)) == (None, "")
    manager = _manager(tmp_path)
    _train(manager, range(1, 7))
    assert manager.all_steps() == [4, 6]
    assert _restore(manager) == (6, "Local") and _restore(manager, 4) == (4, "Remote")
    assert _restore(_manager(tmp_path)) == (6, "Local")
    _train(manager, range(7, 9))
    assert _restore(manager) == (8, "Local"), "the tier that is read faster"
    assert _restore(CheckpointManager(str(tmp_path / "remote"), 1)) == (8, "Remote")
    assert manager.save(9, {"x": torch.full((3,), 9), "step": 9}, force=True) and not manager.should_save(11)
    assert manager.should_save(10) and _restore(manager) == (9, "Local")
    assert [path.name for path in tmp_path.glob("local/*/0/*")] == ["9"] and manager.all_steps() == [4, 8, 9]


@pytest.mark.parametrize(("keep", "left"), [(1, ["4"]), (2, ["4", "8"]), (3, ["4", "6", "8"])])
def test_retained_snapshots(tmp_path: Path, keep: int, left: list[str]) -> None:
    """A run that resumes at an earlier step: its snapshots are the newest."""
    manager = _manager(tmp_path, save_interval=100, local_max_to_keep=keep)
    _train(manager, range(1, 9))
    _train(manager, range(4, 5))
    assert sorted(path.name for path in tmp_path.glob("local/*/0/*")) == left
    assert _restore(manager) == (int(left[-1]), "Local")


def _truncate(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:20])


#: What a host that lost power, a full disk or a cleanup may leave of the snapshot of step 6.
DAMAGE = {
    "empty_file": lambda folder: (folder / "__0_0.distcp").write_bytes(b""),
    "truncated_file": _truncate("__0_0.distcp"),
    "no_file": lambda folder: (folder / "__0_0.distcp").unlink(),
    "no_checksum": lambda folder: (folder / "__0_0.distcp.crc32").unlink(),
    "truncated_metadata": _truncate(".metadata"),
    "no_metadata": lambda folder: (folder / ".metadata").unlink(),
    "truncated_manifest": _truncate(".snapshot"),
    "no_manifest": lambda folder: (folder / ".snapshot").unlink(),
    "not_renamed": lambda folder: folder.rename(folder.with_name(".6.writing")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_snapshot(tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture) -> None:
    manager = _manager(tmp_path, local_max_to_keep=2)
    _train(manager, range(1, 7))
    damage(_snapshot_folder(tmp_path, 6))
    assert _restore(_manager(tmp_path, local_max_to_keep=2)) == (4, "Local")
    (_snapshot_folder(tmp_path, 4) / "__0_0.distcp").unlink()
    caplog.set_level(logging.INFO, "torch_xla.checkpoint")
    assert _restore(manager) == (4, "Remote")
    assert (
        "restoring step 4 from" in caplog.messages[-1] and "__0_0.distcp of the local snapshot" in caplog.messages[-1]
    )
    (tmp_path / "remote" / "4" / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        _restore(manager)


def test_snapshots_of_another_run(tmp_path: Path) -> None:
    """Two runs share the folder of a host; a path that was deleted begins another run."""
    _train(_manager(tmp_path), range(1, 7))
    other = CheckpointManager(
        str(tmp_path / "other"), 4, chkpt_on_preemption=False, local_path=str(tmp_path / "local"), local_save_interval=2
    )
    assert other.restore_latest({}) is None and other.all_steps() == []
    assert _restore(_manager(tmp_path)) == (6, "Local")
    (tmp_path / "remote").rename(tmp_path / "aside")
    assert _restore(_manager(tmp_path)) == (None, "")


def test_remote_url(tmp_path: Path) -> None:
    def made() -> CheckpointManager:
        return CheckpointManager(
            f"memory://{tmp_path.name}", 4, chkpt_on_preemption=False, local_path=str(tmp_path), local_save_interval=2
        )

    _train(made(), range(1, 7))
    assert _restore(made()) == (6, "Local") and _restore(made(), 4) == (4, "Remote")


#: A process that is killed while it writes its second snapshot, after real writes.
KILLED = """
import os, signal, torch, torch_xla
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _snapshots

written = _snapshots.Manifest.write
def write(self, folder):
    if self.step == 4:
        assert {"__0_0.distcp", ".metadata"} <= set(os.listdir(folder))
        os.kill(os.getpid(), signal.SIGKILL)
    written(self, folder)
_snapshots.Manifest.write = write
manager = CheckpointManager(os.environ["WHERE"] + "/remote", 100, local_path=os.environ["WHERE"] + "/local",
                            local_save_interval=2)
for step in range(1, 5):
    manager.save_async(step, {"x": torch.full((3,), step), "step": step})
manager.join()
"""


def test_killed_writer(tmp_path: Path) -> None:
    done = run_script(KILLED, check=False, WHERE=str(tmp_path))
    assert done.returncode == -9 and [path.name for path in tmp_path.glob("local/*/0/.*")] == [".4.writing"]
    assert _restore(_manager(tmp_path)) == (2, "Local")
    assert [path.name for path in tmp_path.glob("local/*/0/*")] == ["2"]


FULL = """
import os, resource, torch, torch_xla, torch_xla.debug.metrics as met
from pathlib import Path
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

manager = CheckpointManager(os.environ["WHERE"] + "/remote", 100, local_path=os.environ["WHERE"] + "/local",
                            local_save_interval=1)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
for step in range(1, 6):
    limit(int(os.environ["LIMIT"]) if step in (2, 3) else resource.RLIM_INFINITY)
    assert manager.save_async(step, {"x": torch.full((1000,), step)})
    manager._local_writer.wait()
    assert manager.all_steps() == [1, 1, 1, 4, 5][step - 1:step], (step, manager.all_steps())
assert met.counter_value("CheckpointSnapshotFailures") == 2
assert [path.name for path in Path(os.environ["WHERE"]).glob("local/*/0/*")] == ["5"]
"""


@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_full_disk(tmp_path: Path, limit: int) -> None:
    """At the first byte, in a tensor's header, and in its values: one warning; later snapshots are written."""
    done = run_script(FULL, check=False, WHERE=str(tmp_path), LIMIT=str(limit))
    assert done.returncode == 0, done.stderr
    # Since Python 3.13, torch's writer reports that it is flushed once more when it is freed.
    again = (
        r"Exception ignored in: .*NoCloseWriter object.*\nTraceback .*\n(?: .*\n)*ValueError: flush of closed file\n"
    )
    (line,) = re.sub(again, "", done.stderr).splitlines()
    assert "local snapshot of step 2 could not be written" in line and "File too large" in line


def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = _manager(tmp_path)

    def fail(self: object, folder: str) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(_snapshots.Manifest, "write", fail)
    manager.save_async(2, {"x": torch.ones(1)})
    with pytest.raises(RuntimeError, match="a defect"):
        manager.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_save_interval": None}, "local_save_interval=None .* must be 1 or more"),
        ({"local_save_interval": 0}, "local_save_interval=0"),
        ({"local_max_to_keep": 0}, "local_max_to_keep=0"),
        ({"local_path": "gs://bucket"}, "local_path=gs://bucket must be a folder of the host"),
        ({"local_path": None}, "local_save_interval needs local_path"),
    ],
)
def test_invalid_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _manager(tmp_path, **options)


@pytest.mark.parametrize(
    ("hosts", "distance"),
    [
        ("ab", 1), ("abcd", 1), ("aabb", 2), ("aaaabbbbcccc", 4), ("abab", 1), ("aaaa", 1),
        ("aab", 1),  # no distance leads all ranks to another host
        ("aabbc", 2),
    ],
)  # fmt: skip
def test_peer_is_on_another_host(hosts: str, distance: int) -> None:
    assert _peer_copy.choose_distance(hosts) == distance


def test_folders_of_earlier_processes(tmp_path: Path) -> None:
    """A host with fewer processes than before: each file is read by one of them."""
    for name in ("0", "1", "2", "3", "x"):
        (tmp_path / name).mkdir()
    names = [[os.path.basename(path) for path in _snapshots.process_folders(str(tmp_path), i, 3)] for i in range(3)]
    assert names == [["0", "3"], ["1"], ["2"]]
    assert _snapshots.process_folders(str(tmp_path / "new"), 1, 2) == [str(tmp_path / "new" / "1")]


def test_merged_folders(tmp_path: Path) -> None:
    manifest = _snapshots.Manifest(3, "id", 1.0, ("a", "b", "c"))
    for process, name in (("0", "a"), ("2", "b")):
        folder = tmp_path / process / "3"
        folder.mkdir(parents=True)
        (folder / name).touch()
        manifest.write(str(folder))
    held = _snapshots.list_held([str(tmp_path / "0"), str(tmp_path / "2")])
    (snapshot,) = _snapshots.gather(None, held)
    assert snapshot.missing == ["c"] and snapshot.holders == {"a": (0,), "b": (0,)}
    assert json.loads((tmp_path / "0" / "3" / ".snapshot").read_text())["files"] == ["a", "b", "c"]


def test_ranges_of_a_file() -> None:
    data = torch.arange(100, dtype=torch.uint8)
    file = _tier_reader._Ranges({10: data[10:30], 50: data[50:60]})
    for start, size in [(10, 20), (15, 3), (50, 10), (59, 1), (28, 1)]:
        assert file.seek(start) == start and file.read(size) == bytes(range(start, start + size))
        assert file.tell() == start + size
    assert file.seek(28) and file.read(10) == bytes([28, 29]) and file.read(10) == b"", "ends with its range"
    with pytest.raises(OSError, match="is unknown"):
        file.seek(0, os.SEEK_END)
