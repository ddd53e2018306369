"""XLA's flags are read once, with a fork that fails while other threads fork or hold files."""

from __future__ import annotations

import os

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.base import xla_flags


def test_threads_read_the_flags_with_one_fork() -> None:
    """filelock, which torch imports, raises where two threads fork at the same time."""
    script = """
        import os
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier

        import torch_xla
        from torch_xla._engine.base import xla_flags

        forks, barrier = [], Barrier(8)
        os.register_at_fork(before=lambda: forks.append(1))

        def read(_):
            barrier.wait()
            return xla_flags.read()

        with ThreadPoolExecutor(8) as pool:
            flags = list(pool.map(read, range(8)))
        assert len(set(map(id, flags))) == 1, flags
        print(len(forks))
    """
    assert run_script(script, XLA_FLAGS="--xla_backend_optimization_level=0").stdout == "1\n"


def test_a_rejected_fork_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rejections = 3
    fork = os.fork

    def reject() -> int:
        nonlocal rejections
        rejections -= 1
        if rejections >= 0:
            raise RuntimeError("os.fork is unsafe while filelock is changing descriptor ownership")
        return fork()

    monkeypatch.setattr(os, "fork", reject)
    assert xla_flags._rejection() == ""
    assert rejections == -1
    rejections = 10**9
    monkeypatch.setattr(xla_flags, "_FORK_SECONDS", 0.01)
    with pytest.raises(RuntimeError, match="filelock"):
        xla_flags._rejection()
