"""The progress line of long compilations: on a terminal, on rank 0, after a delay."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest

from torch_xla._engine.diagnostics import compile_progress
from torch_xla._engine.job import replicas


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch, patience: float = 0.05) -> Terminal:
    """Replace stderr. This is not a fixture, because pytest replaces stderr again before the test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(compile_progress, "PATIENCE", patience)
    monkeypatch.setattr(compile_progress, "INTERVAL", 0.01)
    return stream


def _showing() -> bool:
    return any(t.name == "torch_xla_progress" for t in threading.enumerate())


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        assert _showing(), "the line never appeared"
        time.sleep(0.01)


def test_one_line_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with compile_progress.show_compile_progress(1234):
        _until(lambda: terminal.getvalue().count("\r") >= 3)
    shown = terminal.getvalue()
    parts = [part for part in shown.split("\r") if part]
    assert all(part.startswith("torch_xla: compiling a graph of 1234 ops ... ") for part in parts)
    assert shown.count("\n") == 1 and re.search(r" done after \d+ s\n$", parts[-1])
    assert not _showing()


def test_a_failure_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)

    def fail() -> None:
        with compile_progress.show_compile_progress(2):
            _until(lambda: "\r" in terminal.getvalue())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert re.search(r" stopped after \d+ s\n$", terminal.getvalue()) and not _showing()


def test_a_short_compilation_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, patience=60.0)
    with compile_progress.show_compile_progress(2):
        pass
    assert terminal.getvalue() == ""


def test_other_ranks_and_files_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They also start no thread."""
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(replicas, "process_index", lambda: 1)
    with compile_progress.show_compile_progress(2):
        assert not _showing()
    monkeypatch.setattr(replicas, "process_index", lambda: 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with compile_progress.show_compile_progress(2):
        assert not _showing()
    assert terminal.getvalue() == ""
