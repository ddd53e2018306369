"""Programs that a script used the last time are loaded by a thread before it asks for them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import jax
import pytest

from tests.support.helpers import run_script
from torch_xla._engine.compilation.persistent_cache import prefetch
from torch_xla._engine.compilation.persistent_cache.prefetch import Prefetcher
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder, CorruptEntryError

SCRIPT = """
    import os, sys
    sys.argv = [os.environ["SCRIPT"], *os.environ.get("ARGUMENTS", "").split()]
    import torch, torch_xla
    import torch_xla.debug.metrics as met

    x = torch.arange(6.0).to("xla")  # the first use of a device
    thread = next((t for t in __import__("threading").enumerate() if t.name == "torch_xla_preloading"), None)
    if thread and "wait" in os.environ.get("HOW", ""):
        thread.join()
    if "leave" in os.environ.get("HOW", ""):
        sys.exit(0)
    values = [(x * 2).sum().item(), (x.reshape(2, 3) @ x.reshape(3, 2)).sum().item()]
    counted = [met.counter_value(f"PersistentCache{name}") or 0 for name in ("Hit", "PrefetchHit", "Miss")]
    print(*values, *counted)
    """


def run(folder: Path, **environment: str) -> list[str]:
    script = folder / "train.py"
    script.touch()
    done = run_script(
        SCRIPT,
        SCRIPT=str(script),
        XLA_PERSISTENT_CACHE_PATH=str(folder),
        TORCH_XLA_COMPILE_POLICY="compile",
        **environment,
    )
    return done.stdout.split()


def test_the_same_command_loads_ahead(tmp_path: Path) -> None:
    values = run(tmp_path)[:2]
    assert run(tmp_path, HOW="wait") == [*values, "2", "2", "0"], "both were loaded before they were asked for"
    assert run(tmp_path)[:3] == [*values, "2"], "whether or not they are there in time"
    assert run(tmp_path, ARGUMENTS="--other") == [*values, "2", "0", "0"], "another command loads what it asks for"
    assert run(tmp_path, ARGUMENTS="--other", HOW="wait") == [*values, "2", "2", "0"], "and ahead the next time"
    assert len(list(tmp_path.glob("*.script"))) == 2


def test_a_command_line_of_any_bytes(tmp_path: Path) -> None:
    values = run(tmp_path, ARGUMENTS="--name=\udcff")[:2]
    assert run(tmp_path, ARGUMENTS="--name=\udcff", HOW="wait") == [*values, "2", "2", "0"]


def test_a_script_that_leaves_does_not_wait_for_all(tmp_path: Path) -> None:
    run(tmp_path)
    assert run(tmp_path, HOW="leave") == []


def test_what_cannot_be_loaded_is_reported_by_whoever_needs_it(tmp_path: Path) -> None:
    values = run(tmp_path)[:2]
    (note,) = tmp_path.glob("*.script")
    first = tmp_path / json.loads(note.read_text())[0]
    first.unlink()
    assert run(tmp_path, HOW="wait") == [*values, "1", "1", "1"], "it is compiled again; the other was there in time"
    for content in ("", "7", '["../x.xla"]', "[3]", '{"a": 1}'):
        note.write_text(content)
        assert run(tmp_path, HOW="wait")[2:] == ["2", "0", "0"]
        assert len(json.loads(note.read_text())) == 2, "noted again"


class Slow(CacheFolder):
    """Loading waits until ``go`` is set; of a file that is called so it fails."""

    __slots__ = ()
    go = threading.Event()

    def read(self, file: Path, places: object) -> jax.stages.Compiled:
        assert self.go.wait(30)
        if file.name.startswith("0"):
            raise CorruptEntryError("damaged")
        return file.name  # type: ignore[return-value]


NAMES = [f"{digit * 64}.xla" for digit in "123045678"]


@pytest.fixture
def ahead(tmp_path: Path) -> Prefetcher:
    files, note = Slow(tmp_path, False), tmp_path / f"{'f' * 64}.script"
    files.write_script_entry(note, NAMES)
    for name in NAMES:
        (tmp_path / name).write_bytes(b"x")
    Slow.go = threading.Event()
    return Prefetcher(files, jax.devices()[0], note)


def test_who_loads_what(tmp_path: Path, ahead: Prefetcher) -> None:
    places = [jax.devices()[0]]

    def take(number: int, where: list[jax.Device] = places) -> object:
        return ahead.take(tmp_path / NAMES[number], where)

    ahead.start()
    while ahead._loading is None:
        time.sleep(0.001)
    assert take(1) is None, "it waits: the caller loads it"
    assert take(2, [*places, *places]) is None, "for other devices"
    assert ahead.take(Path("/elsewhere") / NAMES[2], places) is None
    threading.Timer(0.1, Slow.go.set).start()
    assert take(0) == NAMES[0], "it is being loaded: the caller waits"
    assert take(0) is None, "taken"
    ahead._thread.join()
    assert take(1) is None and take(3) is None, "that was left to the caller; that cannot be loaded"
    assert [take(number) for number in (2, 4)] == [NAMES[2], NAMES[4]]
    assert len(ahead._ready) == len(NAMES) - 5
    assert ahead.take(tmp_path / f"{'a' * 64}.xla", places) is None and not ahead._ready, "it does something else now"
    assert take(5) is None


def test_nothing_is_kept_after_it_was_dropped(tmp_path: Path, ahead: Prefetcher) -> None:
    ahead.start()
    ahead.cancel()
    Slow.go.set()
    ahead.shutdown()
    assert all(ahead.take(tmp_path / name, [jax.devices()[0]]) is None for name in NAMES)


def test_a_prefetcher_that_was_shut_down_starts_nothing(tmp_path: Path, ahead: Prefetcher) -> None:
    """A daemon thread uses its first device while the process exits."""
    ahead.shutdown()
    ahead.start()
    assert ahead._thread.ident is None
    assert all(ahead.take(tmp_path / name, [jax.devices()[0]]) is None for name in NAMES)


def test_large_programs_are_not_loaded_ahead(
    tmp_path: Path, ahead: Prefetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_BYTES", 2)
    Slow.go.set()
    ahead.start()
    ahead._thread.join()
    assert list(ahead._ready) == NAMES[:2] and not ahead._waiting, "the third was too many"


def test_so_many_programs_are_noted(tmp_path: Path, ahead: Prefetcher) -> None:
    places = [jax.devices()[0]]
    for name in reversed(NAMES):
        ahead.record_use(tmp_path / name, places)
        ahead.record_use(tmp_path / name, places)
    assert ahead._files.read_script_entry(ahead._note) == NAMES[::-1][:8]
