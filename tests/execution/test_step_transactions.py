"""A step is a transaction: whatever interrupts it, breaks in it or watches it, nothing is lost or done twice."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from tests.fuzz import interrupts
from tests.support.helpers import counts, run_script
from torch_xla._engine import recorder
from torch_xla._engine.compat import pjrt_execution
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.diagnostics.xla_errors import XlaError
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.apply_rule import LoweringError


def test_interrupts_after_every_call_lose_nothing() -> None:
    assert interrupts.at_every_event(("c_return",)) > 30


def test_interrupts_elsewhere_lose_nothing() -> None:
    assert interrupts.at_every_event(stride=11) > 10
    assert interrupts.at_random_moments(3) > 50
    assert interrupts.in_eager_mode(stride=5) > 3
    assert interrupts.in_new_signatures(stride=17) > 10


@pytest.fixture
def indirect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """jax without what it takes to start its executables directly."""
    program_cache.cache.clear()
    monkeypatch.setattr(pjrt_execution, "raw_execute", lambda compiled: (None, None))
    yield
    program_cache.cache.clear()


def test_interrupts_lose_nothing_where_jax_starts_programs(indirect: None) -> None:
    assert interrupts.at_every_event(stride=11) > 10


def test_direct_launch_is_there() -> None:
    """On the versions that this is tested with, programs are started without Python in between."""
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    assert None not in (
        *pjrt_execution.raw_execute(compiled),
        pjrt_execution.raw_device_put(),
        *pjrt_execution.x64_setter(),
    )


def test_launching_leaves_the_users_jax_alone() -> None:
    x = torch.ones(3, device="xla")
    for number in (1.5, 2.5):
        with jax.enable_x64(False):
            x = x + number
            torch_xla.sync()
            assert jax.dtypes.canonicalize_dtype("float64") == "float32"
    assert x.tolist() == [5] * 3 and not jax.config.jax_enable_x64


def test_what_watches_a_run_is_logged_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = interrupts.Training()
    for _ in range(3):
        training.record()
        torch_xla.sync()
    training.record()  # whose program is known by now

    def full(self: metrics.Metric, value: float) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(metrics.Metric, "add", full)
        torch_xla.sync()
    assert "no space left on device" in caplog.text
    assert training.values() == interrupts.undisturbed(4)


def test_metrics_file_that_cannot_be_written_is_logged() -> None:
    done = run_script(
        """
        import torch, torch_xla
        x = torch.ones(2, device="xla")
        for _ in range(3):
            x.add_(1)
            torch_xla.sync()
        print(x.tolist())
        """,
        check=False,
        XLA_METRICS_FILE="/dev/full",
    )
    assert done.stdout == "[4.0, 4.0]\n" and done.returncode == 0
    assert done.stderr.count("XLA_METRICS_FILE: could not write the report of step") == 3


def test_read_in_the_middle_of_a_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A __del__ method or signal handler runs on the thread that builds a graph."""
    x = torch.ones(2, device="xla")
    said = []

    def reads(key: bytes) -> None:
        with pytest.raises(
            RuntimeError, match=r"do not read xla tensors in __del__ methods or signal handlers"
        ) as caught:
            (x + 1).tolist()
        said.append(str(caught.value))

    with monkeypatch.context() as patch:
        patch.setattr(eager_mode, "check_run_allowed", reads)
        y = x + 2
        torch_xla.sync()
    assert __file__ in said[0] and y.tolist() == [3, 3]


# --- what fails, and what goes on ---------------------------------------------------------------------------------


def _no_rule(*args: Any) -> Any:
    raise ValueError("no such thing in this world")


@pytest.fixture
def broken_sinh(monkeypatch: pytest.MonkeyPatch) -> None:
    program_cache.cache.clear()
    rule = dataclasses.replace(RULES["aten::sinh"], function=_no_rule, ctx=False)
    monkeypatch.setitem(RULES, "aten::sinh", rule)


def _no_lowering() -> torch.Tensor:
    return torch.ones(3, device="xla").sinh()


def _no_memory() -> torch.Tensor:
    return torch.ones(1, device="xla").expand(1 << 24, 1 << 24).clone() + 1


class Unforeseen(Exception):
    """What no part of a step expects, made of two arguments."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)


def _no_description() -> torch.Tensor:
    return torch.ones(3, device="xla").erfinv()


FAILURES = {
    "rule": (_no_lowering, LoweringError),
    "memory": (_no_memory, (XlaError, torch.OutOfMemoryError)),
    "unforeseen": (_no_description, (Unforeseen, RuntimeError)),
}


@pytest.fixture
def broken_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with erfinv cannot be described: outside of every rule, as with a dtype that no table has."""
    describe = graph_spec.describe_graph

    def raises(graph: Any, *args: Any) -> Any:
        if any(node[0] == "aten::erfinv" for node in graph.serialize()):
            raise Unforeseen("no such thing", "in this world")
        return describe(graph, *args)

    monkeypatch.setattr(graph_spec, "describe_graph", raises)


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_program_holds_nothing_else_up(kind: str, broken_sinh: None, broken_description: None) -> None:
    fails, error = FAILURES[kind]
    bad = fails()
    with pytest.raises(error):
        torch_xla.sync()
    x = torch.ones(3, device="xla")
    for step in range(3):
        x = x + 1
        with counts() as moved:
            torch_xla.sync()
        assert moved.executions == 1, "only what can be computed is in the graph"
        assert x.tolist() == [step + 2] * 3
    with pytest.raises(error):
        bad.cpu()
    with pytest.raises(error):
        bad.sum().item()
    x.add_(1)
    torch_xla.sync()
    assert x.tolist() == [5] * 3


@pytest.mark.parametrize("kind", FAILURES)
def test_what_needs_a_failed_value_says_so_once(kind: str, broken_sinh: None, broken_description: None) -> None:
    fails, error = FAILURES[kind]
    bad = fails()
    with pytest.raises(error):
        torch_xla.sync()
    needs, free = bad.sum() + 1, torch.ones(2, device="xla") + 1
    with pytest.raises(error, match="1 tensor recorded since then cannot be computed"):
        torch_xla.sync()
    with counts() as moved:
        assert free.tolist() == [2, 2]
    assert moved.executions == 0, "it was computed by the sync that raised"
    torch_xla.sync()
    with pytest.raises(error):
        needs.item()


def test_the_rest_of_a_failed_graph_is_computed(broken_sinh: None) -> None:
    x = torch.full((3,), 2.0, device="xla")
    torch_xla.sync()
    good, bad = x.add_(1), x.sinh()
    after = bad + good
    with pytest.raises(LoweringError, match="aten::sinh"):
        torch_xla.sync()
    with counts() as moved:
        assert good.tolist() == [3] * 3
    assert moved.executions == 0
    with pytest.raises(LoweringError, match="aten::sinh"):
        after.cpu()


def test_a_failed_value_can_be_computed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(3, device="xla")
    torch_xla.sync()
    with monkeypatch.context() as patch:
        program_cache.cache.clear()
        patch.setitem(RULES, "aten::cosh", dataclasses.replace(RULES["aten::cosh"], function=_no_rule, ctx=False))
        weight.mul_(2).add_(weight.cosh())
        with pytest.raises(LoweringError):
            torch_xla.sync()
    expected = torch.full((3,), 2.0)
    expected.add_(expected.cosh())
    torch.testing.assert_close(weight.cpu(), expected)
    weight.add_(1)
    torch_xla.sync()
    torch.testing.assert_close(weight.cpu(), expected + 1)


def test_a_failure_lets_go_of_its_tensors(broken_sinh: None) -> None:
    """The error that is kept has no traceback, whose frames would keep everything alive."""
    gc.collect()
    before = recorder.bindings().live_tensor_count(0)
    bad = _no_lowering()
    with pytest.raises(LoweringError) as caught:
        torch_xla.sync()
    del bad, caught
    gc.collect()
    assert recorder.bindings().live_tensor_count(0) == before


def test_an_error_of_the_cut_does_not_repeat_an_operation(broken_sinh: None) -> None:
    """The graph is flushed before an operation is recorded: an op that raises has no effect, and can be repeated."""
    x = torch.zeros(2, device="xla")
    torch_xla.sync()
    recorder.bindings().set_pending_limit(10)
    try:
        kept, added, errors = [_no_lowering()], 0, 0
        for _ in range(40):
            try:
                x.add_(1)
                added += 1
            except LoweringError:
                errors += 1
    finally:
        recorder.bindings().set_pending_limit(10000)
    torch_xla.sync()
    assert errors == 1 and kept
    assert x.tolist() == [added, added]


def test_an_operation_in_eager_mode_that_fails_has_not_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((2,), 4.0, device="xla")
    monkeypatch.setitem(RULES, "aten::tan", dataclasses.replace(RULES["aten::tan"], function=_no_rule, ctx=False))
    with torch_xla.experimental.eager.eager_mode_context(True):
        with pytest.raises(LoweringError, match="aten::tan"):
            x.tan_()
        assert x.tolist() == [4, 4]
        x.add_(1)
        assert x.tolist() == [5, 5]


def test_a_program_that_fails_while_it_runs_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own work is done in part when it fails: what it was to write over must still be there."""
    program_cache.cache.clear()
    calls = 0

    def host(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("the host gives up")
        return np.sinh(x)

    rule = lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    monkeypatch.setitem(RULES, "aten::sinh", dataclasses.replace(RULES["aten::sinh"], function=rule, ctx=False))
    x, expected = torch.full((3,), 0.25, device="xla"), torch.full((3,), 0.25)
    torch_xla.sync()
    for step in range(5):
        x.mul_(0.5).add_(x.sinh())
        expected.mul_(0.5).add_(expected.sinh())
        if step == 2:
            with pytest.raises(XlaError, match="the host gives up"):
                torch_xla.sync()
        else:
            torch_xla.sync()
        torch.testing.assert_close(x.cpu(), expected)
    program_cache.cache.clear()


# --- several threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [xm.wait_device_ops, torch.xla.synchronize, lambda: torch_xla.sync(wait=True)],
    ids=["wait_device_ops", "synchronize", "sync"],
)
def test_waiting_while_another_thread_trains(wait: Callable[[], Any]) -> None:
    """What is waited for may be donated meanwhile to the next step's program."""
    errors: list[BaseException] = []
    waits = 0
    end = threading.Event()

    def waiting() -> None:
        nonlocal waits
        try:
            while not end.is_set():
                wait()
                waits += 1
        except BaseException as error:
            errors.append(error)

    x = torch.ones(64, 64, device="xla")
    torch_xla.sync()
    thread = threading.Thread(target=waiting)
    thread.start()
    for _ in range(300):
        x.mul_(1.0001).add_(x @ x, alpha=1e-6)
        torch_xla.sync()
    end.set()
    thread.join()
    assert errors == [] and waits > 0
    assert bool(x.isfinite().all())


def test_threads_programs_are_of_their_devices() -> None:
    """A second DataParallel over other devices, and one over more of them, have their own programs."""
    done = run_script(
        """
        import torch, torch_xla, torch_xla.core.xla_model as xm
        import torch_xla.distributed.data_parallel as dp

        def loop(model, loader, device, context):
            for (x,) in loader:
                y = xm.all_reduce("sum", x * 2)
                torch_xla.sync()
                assert y.device == device and {d.id for d in y_devices(y)} == {device.index}, (y.device, device)
            return y.cpu().tolist(), str(y.device)

        def y_devices(y):
            from torch_xla._engine import recorder
            (node,) = recorder.bindings().nodes_of([y])
            return node.buffer.sharding.device_set

        for devices in ([0, 1], [2, 3], [0, 1, 2, 3], [1, 0]):
            run = dp.DataParallel(torch.nn.Identity(), [f"xla:{i}" for i in devices])
            batches = [(torch.full((2,), float(i)),) for i in range(len(devices))]
            results = run(loop, batches)
            total = 2.0 * sum(range(len(devices)))
            assert results == [([total] * 2, f"xla:{i}") for i in devices], results
        print("done")
        """,
        check=False,  # other devices are other programs, which is said
        CPU_NUM_DEVICES="4",
    )
    assert done.stdout == "done\n", done.stderr


def test_reading_leaves_no_copy_on_the_host() -> None:
    x = torch.arange(1000.0).to("xla") + 1
    x.cpu()
    (node,) = recorder.bindings().nodes_of([x])
    assert getattr(node.buffer, "_npy_value", None) is None
