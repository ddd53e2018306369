"""Messages to the user: their parts, wrapping, paths, and progress bars."""

from __future__ import annotations

import io
import os
import sys
import warnings

import pytest
import tqdm

from torch_xla._engine.base import messages

TEXT = messages.compose(
    "recompiled the graph at train.py:26 (14 ops)",
    "the shape of input 2 changed from float32[16, 20] to float32[4, 20]",
    "keep all batches the same size with DataLoader(..., drop_last=True)",
    "recompilation",
)


@pytest.mark.parametrize("columns", [50, 80, 100, 300])
def test_wrapped_at_the_width_of_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = messages.render(TEXT).splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert lines[0].startswith("torch_xla: recompiled") and lines[-1] == "  See: torch-xla explain recompilation"
    starts = [line.split(":")[0] for line in lines if not line.startswith("    ")]
    assert starts == ["torch_xla", "  cause", "  fix", "  See"]
    text = " ".join(line.strip() for line in lines)
    assert text == "torch_xla: " + TEXT.replace("\n", " "), "nothing is lost"
    assert any("float32[16, 20]" in line for line in lines), "shapes are not broken"


def test_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert messages.terminal_columns() == 80


def test_parts_may_be_missing() -> None:
    assert messages.compose("a headline") == "a headline"
    assert messages.compose("a headline", page="value-read").splitlines()[1] == "See: torch-xla explain value-read"


def test_short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_FOLDER", "/home/me/")
    text = messages.shorten_paths("at /home/me/a/train.py:3, /mnt/home/me/b.py:4 and (/home/me/c.py:5)")
    assert text == "at a/train.py:3, /mnt/home/me/b.py:4 and (c.py:5)"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_not_inside_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for i in tqdm.tqdm(range(3), mininterval=0, ncols=40, leave=True):
            if i == 1:
                monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: terminal.write(f"{message}\n"))
                messages.warn("a headline")
    before, _, after = terminal.getvalue().partition("torch_xla: a headline\n")
    assert before.rsplit("\r", 1)[1].strip() == "", "the bar is cleared before the message"
    assert "1/3" in after, "and drawn again after it"


def test_a_failing_progress_bar_does_not_hide_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        _instances = (1,)

    monkeypatch.setattr(sys.modules["tqdm.std"], "tqdm", Broken)
    with pytest.warns(UserWarning, match="torch_xla: a headline"):
        messages.warn("a headline")
