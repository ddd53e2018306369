"""Utilities outside the engine: torch_xla.utils, torch_xla.test.test_utils, callbacks on values."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_xla
import torch_xla.core.xla_env_vars as xenv
import torch_xla.core.xla_model as xm
import torch_xla.utils.utils as xu
from tests.support.helpers import counts, run_script
from torch_xla.core.xla_builder import call_jax
from torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import apply_to_tensors, collect_tensors
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.callback import on_ready_callback, on_ready_event
from torch_xla.test import test_utils as xtest
from torch_xla.utils.checkpoint_tagger import CheckpointTagger
from torch_xla.utils.keyd_queue import KeydQueue, Queue

# --- torch_xla.utils.utils


class Pair(xu.DataWrapper):
    """Two tensors that only get_tensors exposes, created again at each call."""

    __slots__ = ("values",)

    def __init__(self, *values: torch.Tensor) -> None:
        self.values = tuple(values)

    def get_tensors(self) -> list[torch.Tensor]:
        return [value.view_as(value) for value in self.values]

    def from_tensors(self, tensors: list[torch.Tensor]) -> Pair:
        return Pair(*tensors)


def test_data_wrappers_go_to_the_device() -> None:
    batch = [{"pair": Pair(torch.ones(2), torch.zeros(1))}, {torch.ones(3)}]
    loaded = next(iter(MpDeviceLoader([batch], "xla")))
    sent = xm.send_cpu_data_to_device([Pair(torch.ones(2), torch.zeros(1)), 3], "xla:0")
    for pair in (loaded[0]["pair"], sent[0]):
        assert isinstance(pair, Pair) and [t.device.type for t in pair.values] == ["xla"] * 2
        assert [t.tolist() for t in pair.values] == [[1.0, 1.0], [0.0]]
    assert [t.device.type for t in loaded[1]] == ["xla"]
    kept = Pair(torch.ones(2))
    assert xm.ToXlaTensorArena(list, lambda t: False).transform([kept])[0] is kept
    assert [t.device.type for t in collect_tensors((loaded, 3))] == ["xla"] * 3
    assert apply_to_tensors(lambda t: t.numel(), {"a": [torch.ones(4)], "b": 5}) == {"a": [4], "b": 5}


def test_nested_structures() -> None:
    Point = namedtuple("Point", "x y")

    class Node:
        def __init__(self, item: Any) -> None:
            self.item = item

    value = {"list": [1, "a", (2, Point(3, "b"))], "node": Node([4, {"c": 5}]), "set": {6}}
    seen: list[int] = []
    xu.for_each_instance(value, lambda v: isinstance(v, int), seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]
    shown: list[str] = []
    xu.for_each_instance([value, value], str, shown.append)
    assert shown == ["a", "b"], "each once"
    new = xu.for_each_instance_rewrite(value, lambda v: isinstance(v, int), lambda v: 10 * v)
    assert new["list"] == [10, "a", (20, Point(30, "b"))] and new["set"] == {60}
    assert new["node"].item == [40, {"c": 50}] and value["node"].item == [4, {"c": 5}]
    kept = OrderedDict(x=1)
    assert type(xu.for_each_instance_rewrite(kept, str, str.upper)) is OrderedDict
    assert xu.as_list(3) == [3] and xu.as_list([3]) == [3] and xu.as_list((3,)) == (3,)
    assert xu.list_copy_append((1, 2), 3) == [1, 2, 3]
    assert xu.shape([[1, 2, 3], [4, 5, 6]]) == [2, 3] and xu.shape(()) == [0] and xu.shape(1) == []
    assert xu.flatten_nested_tuple((1, (2, (3, [4])), 5)) == (1, 2, 3, 4, 5)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str, type, Any]] = [
        ("7", int, 7), ("0", bool, False), ("2", bool, True), ("true", bool, True), ("FALSE", bool, False),
        ("a", str, "a"), ("", int, None), ("1.5", float, 1.5),
    ]  # fmt: skip
    for text, kind, expected in cases:
        monkeypatch.setenv("SOME_NAME", text)
        assert xu.getenv_as("SOME_NAME", kind) == expected
    monkeypatch.setenv("SOME_NAME", "maybe")
    with pytest.raises(ValueError, match="SOME_NAME='maybe' is not a valid bool"):
        xu.getenv_as("SOME_NAME", bool)
    for text, flag in (("true", True), ("TRUE", True), ("3", True), ("0", False), ("", False), ("no", False)):
        monkeypatch.setenv("SOME_NAME", text)
        assert xu.check_env_flag("SOME_NAME") is flag
    assert xu.check_env_flag("NO_SUCH_NAME", "1") and xu.getenv_as("NO_SUCH_NAME", int, 4) == 4
    assert xenv.PJRT_DEVICE == "PJRT_DEVICE" and xenv.ORDINAL == "XRT_SHARD_ORDINAL"


def test_cleanup_and_lazy_values() -> None:
    called: list[int] = []
    cleaner = xu.Cleaner(lambda: called.append(1))
    folder = xu.TmpFolder()
    path = Path(folder.name)
    (path / "file").write_text("x")
    assert path.is_dir() and not called and cleaner is not None
    del cleaner, folder
    gc.collect()
    assert called == [1] and not path.exists()
    made: list[int] = []
    lazy = xu.LazyProperty(lambda: made.append(1) or 5)
    assert xu.parallel_work(4, lambda _: lazy.value, range(8)) == [5] * 8 and made == [1]
    with pytest.raises(ZeroDivisionError):
        xu.parallel_work(2, lambda a, b: a / b, [1, 1], [1, 0])
    ports = xu.get_free_tcp_ports(3)
    assert len(set(ports)) == 3 and all(1024 <= port < 65536 for port in ports)


def test_generated_data() -> None:
    loader = xu.FnDataGenerator(lambda x: 2 * x, 3, torch.ones, dims=(2,), count=2)
    for _ in range(2):
        pairs = list(loader)
        assert len(pairs) == len(loader) == 2
        assert pairs[1][0].tolist() == [[1.0, 1.0]] * 3 and pairs[1][1].tolist() == [[2.0, 2.0]] * 3


def test_timing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert xu.timed(lambda: 3, "Three: ") == 3
    with xu.TimedScope("Failing: ", printfn=print) as scope:
        scope.set_error("no luck")
    monkeypatch.setenv("DEBUG", "1")
    xu.get_print_fn()("shown")
    xu.get_print_fn(False)("hidden")
    out, err = capsys.readouterr()
    assert re.fullmatch(r"Three: \d+\.\d{3}ms\nshown\n", err) and re.fullmatch(r"Failing: [\d.]+ms, no luck\n", out)


# --- queues, checkpoint names


def test_queues_end() -> None:
    queue, keyed = Queue(maxsize=2), KeydQueue(maxsize=2)
    assert queue.max_size() == keyed.max_size() == 2
    feeder = threading.Thread(target=lambda: [queue.put(i) for i in range(20)] and queue.close_write())
    feeder.start()
    got = [queue.get() for _ in range(22)]
    feeder.join()
    assert got == [*range(20), None, None]
    with pytest.raises(RuntimeError, match="closed"):
        queue.put(1)
    feeder = threading.Thread(target=lambda: [keyed.put(i, -i) for i in range(4)])
    feeder.start()
    assert [keyed.get(i) for i in (1, 0, 2, 3)] == [-1, 0, -2, -3]
    feeder.join()
    keyed.put("a", 1)
    with pytest.raises(KeyError, match="'a'"):
        keyed.put("a", 2)
    keyed.put("b", 2)
    waiting: list[Any] = []
    threads = [threading.Thread(target=lambda: waiting.append(keyed.get("never"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    keyed.close()
    for thread in threads:
        thread.join()
    assert waiting == [None, None] and keyed.get("a") is None
    with pytest.raises(ValueError, match="maxsize=0"):
        Queue(0)


def test_checkpoint_tagger(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_text("x")
    a, b, c = map(str, files)
    tagger = CheckpointTagger()
    tagger.tag("last", a)
    tagger.tag("best", a)
    tagger.tag("last", b)
    tagger.tag("last", b)
    assert files[0].exists() and tagger.tags() == {"last": b, "best": a}
    removed: list[str] = []
    again = CheckpointTagger.load_from_json(tagger.save_to_json(), remover=removed.append)
    again.tag("last", c)
    assert removed == [b] and files[1].exists() and again.tags() == {"last": c, "best": a}
    tagger.tag("best", b)
    assert not files[0].exists()
    with pytest.raises(ValueError, match="expected paths by tag"):
        CheckpointTagger.load_from_json("[1]")


# --- torch_xla.test.test_utils


class Writer:
    """Records calls like a SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int | None]] = {}
        self.calls: list[str] = []

    def add_scalar(self, name: str, value: float, step: int | None = None) -> None:
        self.scalars[name] = float(value), step

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_updates_of_a_training_script(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    loss = torch.ones((), device="xla") / 3
    xm.add_step_closure(xtest.print_training_update, ("xla:0", 4, loss, 10.5, 9.25, 2, writer))
    with counts() as moved:
        torch_xla.sync()
    assert moved.executions == 1
    xtest.print_test_update("xla:0", torch.tensor(98.456), epoch=2)
    xtest.print_test_update("xla:0", None, step=7)
    time_of_day = r"Time=\d\d:\d\d:\d\d"
    assert [re.sub(time_of_day, "Time", line) for line in capsys.readouterr().out.splitlines()] == [
        "| Training Device=xla:0 Epoch=2 Step=4 Loss=0.33333 Rate=10.50 GlobalRate=9.25 Time",
        "| Test Device=xla:0 Epoch=2 Accuracy=98.46 Time",
        "| Test Device=xla:0 Step=7 Time",
    ]
    assert writer.scalars == {"examples/sec": (10.5, 4), "average_examples/sec": (9.25, 4)}
    xtest.write_to_summary(writer, 5, {"accuracy": 0.5}, write_xla_metrics=True)
    assert writer.scalars["accuracy"] == (0.5, 5) and writer.scalars["aten_ops_sum"][1] == 5
    assert any("CompileTime" in name for name in writer.scalars)
    xtest.close_summary_writer(writer)
    assert writer.calls == ["flush", "close"]
    xtest.close_summary_writer(None)
    xtest.write_to_summary(None, dict_to_write={"x": 1.0})
    assert xtest.get_summary_writer(None) is None and xtest.get_summary_writer("") is None


def test_summary_writer_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match="install tensorboard"):
        xtest.get_summary_writer(str(tmp_path))


APART = """
import os, unittest
import torch
from torch_xla.test.test_utils import mp_test

class Case(unittest.TestCase):
    def setUp(self):
        self.value = 3

    @mp_test
    def apart(self):
        assert os.getpid() != int(os.environ["PARENT"]) and torch.ones(2, device="xla").sum().item() == 2
        self.assertEqual(self.value, 4)

@mp_test
def dies(number):
    os._exit(number)

def main():
    os.environ["PARENT"] = str(os.getpid())
    result = unittest.TestResult()
    Case("apart").run(result)
    print(result.testsRun, [text.splitlines()[-2] for _, text in result.failures], result.errors)
    try:
        dies(7)
    except AssertionError as error:
        print(error)
"""


def test_mp_test(tmp_path: Path) -> None:
    (tmp_path / "tests_apart.py").write_text(APART)
    done = run_script(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tests_apart; tests_apart.main()")
    assert done.stdout.splitlines() == [
        "1 ['AssertionError: 3 != 4'] []", "dies: its process exited early with exit code 7",
    ]  # fmt: skip


# --- callbacks


def test_callbacks_when_values_are_ready() -> None:
    met: list[tuple[str, bool]] = []
    x = torch.randn(64, 64).to("xla")
    y = x @ x
    here = threading.get_ident()
    done = threading.Event()

    def note(name: str) -> Any:
        return lambda t: met.append((name, t is y and threading.get_ident() != here))

    on_ready_callback(y, note("first"))
    on_ready_callback(y, note("second"))
    y.add_(1)  # the callbacks see the earlier value
    torch_xla.sync()
    assert on_ready_event(y).wait(60) and met == [("first", True), ("second", True)]
    on_ready_callback(y, lambda _: done.set())
    assert done.wait(60)
    with pytest.raises(ValueError, match="expected an xla tensor, got one on cpu"):
        on_ready_event(torch.ones(1))


def test_an_error_of_a_callback_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    x = torch.ones(2, device="xla")
    on_ready_callback(x, lambda _: 1 / 0)
    assert on_ready_event(x).wait(60)
    assert [type(error) for error in shown] == [ZeroDivisionError]


def test_callbacks_are_called_before_the_process_ends() -> None:
    done = run_script(
        """
        import time
        import torch
        from torch_xla.experimental.callback import on_ready_callback
        x = torch.ones(4, device="xla") * 3
        on_ready_callback(x, lambda t: time.sleep(0.3) or print(t.tolist(), flush=True))
        """
    )
    assert done.stdout == "[3.0, 3.0, 3.0, 3.0]\n"


def test_call_jax_known_by_another_name() -> None:
    x = torch.ones(3, device="xla")
    traced: list[int] = []

    def made_anew(factor: int) -> Any:
        def function(a: jax.Array) -> jax.Array:
            traced.append(factor)
            return a * factor

        return function

    results = [call_jax(made_anew(2), (x,), override_hash="twice") for _ in range(3)]
    assert [r.tolist() for r in results] == [[2.0] * 3] * 3 and set(traced) == {2}
    times = len(traced)
    call_jax(made_anew(2), (x,), override_hash="twice")
    assert len(traced) == times
    assert call_jax(made_anew(5), (x,)).tolist() == [5.0] * 3
