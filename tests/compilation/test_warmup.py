"""Programs are run once, with zeros, before a script asks for them: those of which no caller can notice that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine import recorder
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import warmup
from torch_xla._engine.compilation.persistent_cache.prefetch import Prefetcher
from torch_xla._engine.compilation.persistent_cache.storage import CachedProgram, CacheFolder
from torch_xla._engine.cpu_backend import compile_options

Record = Callable[[torch.Tensor], object]


def _until_small(x: torch.Tensor) -> object:
    """With zeros this has no end."""
    end, part = (torch.tensor(value, device="xla") for value in (1.0, 0.5))
    return torch._higher_order_ops.while_loop(lambda x, end: x.sum() >= end, lambda x, end: (x * part, end), (x, end))


#: What is recorded with a tensor of 8 x 8, and whether its program may run ahead.
GRAPHS: dict[str, tuple[Record, bool]] = {
    "products": (lambda x: (x @ x).relu(), True),
    "a handler": (lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]), True),
    "random numbers, whose loop has five turns": (torch.nn.functional.dropout, True),
    "sums": (lambda x: x.cumsum(0).sort(), True),
    "no operands": (lambda x: torch.ones(3, device="xla") * 2, True),
    "a loop that ends when its values say so": (_until_small, False),
    "LAPACK": (lambda x: torch.linalg.qr(x), False),
    "300 MB": (lambda x: torch.ones(300, 2**18, device="xla") + x[0, 0], False),
    "34 GFLOP": (lambda x: (y := x.repeat(256, 256)) @ y @ y, False),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_which_programs_may(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, expected = GRAPHS[name]
    monkeypatch.setattr(persistent_cache, "_files", CacheFolder(tmp_path, False))
    program_cache.cache.clear()
    x = torch.ones(8, 8).to("xla")
    wanted = record(x)
    torch_xla.sync()
    (file,) = tmp_path.glob("*.xla")
    with recorder.enable_x64():
        kept = CacheFolder(tmp_path, False).read(file, jax.devices()[:1])
    assert kept is not None and kept.is_harmless is expected and wanted is not None
    if expected:
        with counts() as moved:
            warmup.run_with_zeros(kept.compiled, jax.devices()[0])
        assert moved.only("PersistentCacheWarmup", "ExecuteTime") == {"PersistentCacheWarmup": 1}
    assert not warmup.is_safe_to_run(kept.compiled, "tpu")


def test_what_cannot_run_ahead_is_there_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """numpy knows no dtype of jax's keys."""
    place, files = jax.devices()[0], CacheFolder(tmp_path, False)
    lowered = jax.jit(lambda key: jax.random.key_data(key) + 1).lower(jax.random.key(0))
    file = files.executable_path(lowered.as_text(), [place])
    assert file is not None
    files.write(file, CachedProgram(compile_options.compile_with_options(lowered, [place]), is_harmless=True), [place])
    note = tmp_path / f"{'f' * 64}.script"
    files.write_script_entry(note, [file.name])
    ahead = Prefetcher(files, place, note)
    with caplog.at_level(logging.DEBUG, "torch_xla.compile"), counts() as moved:
        ahead.start()
        ahead._thread.join()
    assert f"{file.name}: warm-up run failed" in caplog.text and not moved.only("PersistentCacheWarmup")
    found = ahead.take(file, [place])
    assert found is not None and found.compiled(jax.random.key(3)).tolist() == [1, 4]


def test_what_was_taken_meanwhile_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, files, loaded = jax.devices()[0], CacheFolder(tmp_path, False), threading.Event()
    lowered = jax.jit(jnp.sin).lower(jnp.ones(2))
    file = files.executable_path(lowered.as_text(), [place])
    assert file is not None
    files.write(file, CachedProgram(lowered.compile(), is_harmless=True), [place])
    note = tmp_path / f"{'f' * 64}.script"
    files.write_script_entry(note, [file.name])
    ahead, go = Prefetcher(files, place, note), threading.Event()
    tell = ahead._loaded

    def told(*arguments: object) -> None:
        tell(*arguments)  # type: ignore[arg-type]
        loaded.set()
        assert go.wait(30)

    monkeypatch.setattr(ahead, "_loaded", told)
    with counts() as moved:
        ahead.start()
        assert loaded.wait(30) and ahead.take(file, [place]) is not None
        go.set()
        ahead._thread.join()
    assert not moved.only("PersistentCacheWarmup")
