"""A folder of checkpoints that is not empty: a second run, lower steps, leftovers of processes that ended, a umask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_xla.experimental.distributed_checkpoint import CheckpointManager

#: (steps of the first run, steps of the run after it, max_to_keep, what is left).
RUNS = [
    ([10, 20, 30], [2, 4], 3, [2, 4, 30]),  # restarted at a lower step
    ([10, 20, 30], [2], 1, [2]),
    ([10, 20, 30], [30], 2, [20, 30]),  # the last step once more
    ([10, 20, 30], [10], 2, [10, 30]),  # an old step once more is the newest checkpoint
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
