"""scripts/call_walk.py counts visits, returns and climbs, on three small modules and on a compilation."""

from __future__ import annotations

import re
from pathlib import Path

import call_walk
import pytest

from tests.support.helpers import run_script
from tests.support.scripts import ROOT

#: top calls middle twice in a loop, then low, then middle again from another function; low calls back.
MODULES = {
    "top": "def begin(middle, low):\n    for _ in range(3):\n        middle['work'](low)\n    low['step'](int)\n"
    "    again(middle, low)\n    return list(generate(low))\n"
    "def again(middle, low):\n    middle['work'](low)\n"
    "def generate(low):\n    yield 1\n    yield low['step'](int)\n",
    "middle": "def work(low):\n    low['step'](after)\n    return after()\ndef after():\n    return 1\n",
    "low": "def step(function):\n    return sorted([2, 1], key=lambda _: function())\n",
}


@pytest.fixture
def modules() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {name: {} for name in MODULES}
    for name, text in MODULES.items():
        exec(compile(text, f"{name}.py", "exec"), found[name])
    return found


def test_walk(modules: dict[str, dict[str, object]]) -> None:
    walk = call_walk.Walk({"low": 0, "middle": 1, "top": 2})
    files = {f"{name}.py": name for name in MODULES}
    with call_walk.trace_calls(walk, files, ("top", "begin"), ("top", "begin")):
        modules["middle"]["after"]()  # type: ignore[operator]  # before the walk
        modules["top"]["begin"](modules["middle"], modules["low"])  # type: ignore[operator]
        modules["middle"]["work"](modules["low"])  # type: ignore[operator]  # after it
    # begin -> work -> step -> after, called through sorted(); step; again -> work; generate -> step
    assert walk.visits == ["top", "middle", "low", "middle", "low", "middle", "low"]
    assert (len(walk.files), walk.returns, walk.climbs()) == (3, 4, [3, 5])
    assert str(walk) == "   7 visits of   3 files,    4 returns,    2 climbs back up"
    assert list(walk.details())[3] == "  ^ level  1  middle"
    assert walk.without(("middle.",)).visits == ["top", "low"]


def test_missing_entry_function() -> None:
    with (
        pytest.raises(RuntimeError, match=re.escape("no walk from a.f to a.g: adapt ENTRIES and EXITS")),
        call_walk.trace_calls(call_walk.Walk({}), {}, ("a", "f"), ("a", "g")),
    ):
        pass


def test_compilation() -> None:
    """The walk of a compilation of the current code: the script names existing entry and exit functions."""
    script = Path(ROOT) / "scripts"
    done = run_script(f"import sys; sys.path.insert(0, {str(script)!r}); import call_walk; sys.exit(call_walk.main())")
    short, full = done.stdout.splitlines()[-2:]
    numbers = [[int(number) for number in re.findall(r"\d+", line)[:4]] for line in (short, full)]
    assert short.startswith("one compilation: ") and full.startswith("with helpers: ")
    assert all(visits == files + returns and climbs <= returns for visits, files, returns, climbs in numbers)
    assert 10 <= numbers[0][1] < numbers[1][1]
