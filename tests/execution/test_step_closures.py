"""xm.add_step_closure, xm.RateTracker, xm.fork_rng, xm.set_replication."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from tests.support.helpers import run_script
from torch_xla.utils.closures import AsyncClosureHandler


def test_closures_run_after_the_barrier_in_order_without_another_program() -> None:
    seen: list[Any] = []
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    met.clear_all()
    y = x + 1
    xm.add_step_closure(lambda t: seen.append(t.tolist()), (y,))
    xm.add_step_closure(seen.append, ["second"])
    assert seen == []
    xm.mark_step()
    assert seen == [[2.0] * 3, "second"]
    assert met.metric_data("ExecuteTime")[0] == 1
    xm.mark_step()
    assert len(seen) == 2


def test_an_error_is_raised_after_all_have_been_called() -> None:
    seen: list[int] = []

    def fails() -> None:
        raise ValueError("of the closure")

    xm.add_step_closure(fails)
    xm.add_step_closure(seen.append, (1,))
    with pytest.raises(ValueError, match="of the closure"):
        torch_xla.sync()
    assert seen == [1]
    torch_xla.sync()


def test_sync_with_wait_waits_for_asynchronous_closures() -> None:
    seen: list[Any] = []

    def ends_a_step() -> None:
        time.sleep(0.2)
        torch_xla.sync(wait=True)  # does not wait for itself
        seen.append("done")

    xm.add_step_closure(ends_a_step, run_async=True)
    torch_xla.sync()
    assert seen == []
    torch_xla.sync(wait=True)
    assert seen == ["done"]


def test_sync_with_wait_raises_the_error_of_an_asynchronous_closure() -> None:
    def fails() -> None:
        time.sleep(0.1)
        raise ValueError("of the closure")

    xm.add_step_closure(fails, run_async=True)
    with pytest.raises(ValueError, match="of the closure"):
        torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)


def test_closures_of_a_thread_wait_for_its_own_barrier() -> None:
    seen: list[str] = []

    def other() -> None:
        xm.add_step_closure(seen.append, ("other",))
        queued.set()
        go_on.wait(60)
        torch_xla.sync()

    queued, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    assert queued.wait(60)
    torch_xla.sync()
    assert seen == []
    go_on.set()
    thread.join()
    assert seen == ["other"]


def test_beside_the_program_with_values_as_they_were() -> None:
    seen: list[Any] = []
    gate = threading.Event()

    def slow(x: torch.Tensor) -> None:
        gate.wait(60)
        seen.append((threading.current_thread() is threading.main_thread(), x.tolist()))

    x = torch.zeros(2, device="xla")
    for _ in range(3):
        x += 1
        xm.add_step_closure(slow, (x,), run_async=True)
        torch_xla.sync()
    assert seen == []
    gate.set()
    deadline = time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [(False, [float(i)] * 2) for i in (1, 2, 3)]


def test_errors_beside_the_program_are_raised_later() -> None:
    handler, seen = AsyncClosureHandler(), []

    def fails() -> None:
        raise ValueError("beside")

    handler.run(fails)
    with pytest.raises(ValueError, match="beside"):
        handler.wait()
    handler.run_all([lambda: seen.append(1), lambda: seen.append(2)])
    handler.wait()
    assert seen == [1, 2]


def test_closures_beside_the_program_are_called_before_it_ends() -> None:
    done = run_script(
        """
        import time, torch, torch_xla
        import torch_xla.core.xla_model as xm
        def late(x):
            time.sleep(0.5)
            print("late", x.tolist(), flush=True)
        xm.add_step_closure(late, (torch.ones(2, device="xla"),), run_async=True)
        torch_xla.sync()
        """
    )
    assert done.stdout.split("\n")[-2] == "late [1.0, 1.0]"


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    tracker = xm.RateTracker(smooth_factor=0.5)
    rates = []
    for seconds, count in ((1.0, 10), (1.0, 30), (2.0, 0)):
        now[0] += seconds
        tracker.add(count)
        rates.append(tracker.rate())
    assert rates == [10.0, 20.0, 20.0]
    assert tracker.global_rate() == 10.0
    with pytest.raises(ValueError, match=r"at least 0 and below 1, got 1"):
        xm.RateTracker(1)


def test_rates_are_smoothed_as_the_environment_says() -> None:
    script = """
        import time, torch_xla.core.xla_model as xm
        now = [0.0]
        time.perf_counter = lambda: now[0]
        tracker = xm.RateTracker()
        for count in (10, 30):
            now[0] += 1
            tracker.add(count)
            rate = tracker.rate()
        print(rate)
        """
    assert run_script(script, RATE_TRACKER_SMOOTHING="0.75").stdout.strip() == "15.0"


def test_forked_random_numbers() -> None:
    def draw() -> list[float]:
        return torch.rand(3, device="xla").tolist()

    torch.manual_seed(1)
    first, second = draw(), draw()
    torch.manual_seed(1)
    assert draw() == first
    with xm.fork_rng():
        xm.set_rng_state(7)
        draw()
    assert draw() == second
    torch.manual_seed(1)
    with xm.fork_rng(enabled=False):
        draw()
    assert draw() == second


def test_set_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")  # which it sets where nothing has: forks for other tests are not told of it
    xm.set_replication(torch.device("xla:0"), ["xla:0"])
    xm.set_replication("xla:0", None)
    assert torch.zeros(1, device="xla").device.index == 0
    with pytest.raises(RuntimeError, match="xla:99 does not exist"):
        xm.set_replication("xla:99", [])
