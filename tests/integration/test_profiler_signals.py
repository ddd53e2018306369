"""Signals of a timer of CPU time, such as a sampling profiler's, run on XLA's threads and leave memory intact."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import warnings

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.compat import contraction_kernel

#: Trains for four seconds with a signal each half millisecond of CPU time. With oneDNN's kernel of jaxlib 0.10.2 the
#: heap is corrupt in less than a second.
TRAINING = """
    import signal, time, torch, torch_xla
    signal.signal(signal.SIGPROF, lambda *_: None)
    signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).to("xla")
    optimizer, steps, end = torch.optim.SGD(model.parameters(), 0.01), 0, time.monotonic() + 4
    while time.monotonic() < end:
        optimizer.zero_grad()
        loss = model(torch.randn(64, 256).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        loss.item()
        steps += 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert steps > 20, steps
"""


def test_training_with_signals_on_all_threads() -> None:
    run_script(TRAINING)


#: (jaxlib's release, when the timer starts, the user's value, the value in the end, whether it warns)
STATES = (
    ("0.10.2", "never", None, None, False),
    ("0.10.2", "before the backend", None, "false", False),
    ("0.10.2", "after the backend", None, None, True),
    ("0.10.2", "before the backend", "true", "true", False),
    ("0.10.2", "after the backend", "false", "false", False),
    ("0.11.0", "before the backend", None, None, False),
    ("0.12.0.1", "after the backend", None, None, False),
)


@pytest.mark.parametrize(("release", "start", "value", "expected", "warns"), STATES)
def test_which_timers_disable_the_kernel(
    monkeypatch: pytest.MonkeyPatch, release: str, start: str, value: str | None, expected: str | None, warns: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: release)
    monkeypatch.setattr(contraction_kernel, "_has_warned", False)
    monkeypatch.setenv(contraction_kernel.VARIABLE, value or "")  # also restores a variable that was not set
    if value is None:
        monkeypatch.delenv(contraction_kernel.VARIABLE)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            _start_timer(start == "before the backend")
            contraction_kernel.disable_if_profiled()
            _start_timer(start != "never")
            for _ in range(2):  # two compilations
                contraction_kernel.warn_of_late_timer()
        finally:
            _start_timer(False)
    assert os.environ.get(contraction_kernel.VARIABLE) == expected
    assert [contraction_kernel.VARIABLE in str(each.message) for each in found] == [True] * warns


def _start_timer(active: bool) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 3600 if active else 0)  # does not expire during a test
