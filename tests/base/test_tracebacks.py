"""Tracebacks of errors: without the internal frames of the engine, unless TORCH_XLA_TRACEBACK=full."""

from __future__ import annotations

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.base.tracebacks import hide_engine_frames

_ERRORS = {
    "out of memory, read": (
        'x = torch.zeros(10**6, 10**6, device="xla")\nprint(((x + 1) @ x).sum().item())',
        {},
        "torch.OutOfMemoryError",
    ),
    "out of memory, sync": (
        'x = torch.zeros(10**6, 10**6, device="xla")\ny = x @ x\ntorch_xla.sync(wait=True)\nprint(y[0, 0].item())',
        {},
        "torch.OutOfMemoryError",
    ),
    "device": ('torch.ones(2, device="xla")', {"PJRT_DEVICE": "GPUU"}, "PJRT_DEVICE"),
    "setting": ('torch.ones(2, device="xla")', {"CPU_NUM_DEVICES": "four"}, "CPU_NUM_DEVICES='four'"),
}


@pytest.mark.parametrize("name", _ERRORS)
def test_internal_frames(name: str) -> None:
    code, variables, text = _ERRORS[name]
    code = f"import torch, torch_xla\n{code}"
    counts = {}
    for traceback in ("short", "full"):
        done = run_script(code, check=False, TORCH_XLA_TRACEBACK=traceback, **variables)
        assert done.returncode == 1 and text in done.stderr, done.stderr
        counts[traceback] = done.stderr.count("/torch_xla/_engine/")
    assert counts["short"] <= 1 < counts["full"], counts


def test_user_frames_are_kept() -> None:
    def users() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        hide_engine_frames(users)()
    assert [entry.name for entry in caught.traceback] == ["test_user_frames_are_kept", "users"] or (
        [entry.name for entry in caught.traceback] == ["test_user_frames_are_kept", "call", "users"]
    )
