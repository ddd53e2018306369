"""The rules of scripts/lint.py find what they are for, and leave the field's names and English alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import lint as command
import pytest
from lint_rules import class_names, dialect, function_names, sources

BAD_NAMES = """
    of known told whom laid_out _of_script of_shapes known_together written_at _unscaled _over elsewhere running
    taken_apart stored_as one_of _because
"""
GOOD_NAMES = """
    embed thread seed feed as_strided searchsorted is_sharded mesh_sharding lookup_program place_inputs read split cut
    put run sharding padding string on_launched from_dlpack to_named_sharding with_alpha padded_shape for_each_device
    cached_programs __getattr__ dispatch_to_cpu _any
"""


@pytest.mark.parametrize("name", BAD_NAMES.split())
def test_bare_name(name: str) -> None:
    assert function_names.is_bare(name)


@pytest.mark.parametrize("name", GOOD_NAMES.split())
def test_descriptive_name(name: str) -> None:
    assert not function_names.is_bare(name)


def test_function_names_of_module(tmp_path: Path) -> None:
    """Methods and nested functions have a class or a function that says what they are of."""
    module = tmp_path / "module.py"
    module.write_text(
        "import sys\n"
        "def place_inputs():\n    def known(): ...\n"
        "class Cache:\n    def known(self): ...\n"
        "if sys:\n    async def laid_out(): ...\n"
        "def of(): ...\n"
    )
    found = list(function_names.check([module]))
    assert sorted((one.line, one.text.split(":")[0]) for one in found) == [(7, "laid_out"), (8, "of")]


def test_class_names(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("class Graph: ...\nclass _Plan: ...\nclass Only: ...\n")
    second.write_text("\nclass Graph: ...\nclass _Plan: ...\n")
    found = list(class_names.check([first, second]))
    assert [(one.path, one.line) for one in found] == [(first, 1), (second, 2)]
    assert all("class Graph: defined in first.py, second.py" in one.text for one in found)


def test_upstream_names_are_exempt() -> None:
    assert sources.is_upstream(sources.ROOT / "torch_xla" / "core" / "_builder.py", "Op")
    assert not sources.is_upstream(sources.ROOT / "torch_xla" / "aot" / "_builder.py", "Op")


BAD_PROSE = {
    "a.py": {
        "# Results that nobody marked\n": "nobody",
        "x = f'the graph was cut at {line}'\n": "graph was cut",
        '"""A value, and how it\n    lies on the mesh."""\n': "lies on the mesh",
        "raise ValueError(\n    'the CPU says so in its '\n    'words'\n)\n": "in its words",
        "call()  # padded, or filled\n# up with zeros\n": "filled up",
    },
    "a.cpp": {
        "// A process of its\n// own.\n": "of its own",
        '/* The program\n * wants it. */ int x = f("at once");\n': "program wants",
        'TORCH_CHECK(false, "is refused");\n': "refused",
    },
    "a.md": {"## The way out\n": "the way out", "Run it on a TPU that is not here.\n": "that is not here"},
}

GOOD_PROSE = {
    "a.py": [
        "x.sum(keepdim=True)  # keeps dimensions; values lie in [0, 1)\n",
        "nobody = whom(storm, mend)  # only text is checked\n",
        "raise OSError('connection refused')\n",
        '"""The recommended way: in other words, a recommendation that stands for itself."""\n',
        "x = 'the tensor is laid out in memory row by row'\n",
    ],
    "a.cpp": ["std::promise<int> promise; int door; // ordinary prose\n", "#define ANEW 1\n"],
    "a.md": ["Set `TORCH_XLA_STORM=0`; the journalist amended everything in parts per million.\n"],
}


@pytest.mark.parametrize(
    ("name", "text", "phrase"), [(n, t, p) for n, bad in BAD_PROSE.items() for t, p in bad.items()]
)
def test_dialect(tmp_path: Path, name: str, text: str, phrase: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = list(dialect.check([path]))
    assert [re.match('"(.*)": write .+', one.text)[1] for one in found][:1] == [phrase]  # type: ignore[index]
    assert f"{path}:{found[0].line}: " in str(found[0]) and 1 <= found[0].line <= text.count("\n")


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, good in GOOD_PROSE.items() for text in good])
def test_ordinary_english(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert not [str(one) for one in dialect.check([path])]


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails above a limit, prints the place, and asks to lower a limit that is too high."""
    module = tmp_path / "module.py"
    module.write_text("def of(): ...\n")
    limits = tmp_path / "limits.toml"
    monkeypatch.setattr(command, "LIMITS", limits)
    monkeypatch.setattr(command, "RULES", {"function_names": (function_names.check, {"package": ("x",)})})
    monkeypatch.setattr(command, "tracked_files", lambda *_: [module])
    monkeypatch.setattr("sys.argv", ["lint"])
    for limit, failed, said in ((0, True, f"{module}:1: of: "), (1, False, ""), (2, False, "2 allowed")):
        limits.write_text(f"[function_names]\npackage = {limit}\n")
        assert bool(command.main()) is failed
        assert said in (printed := capsys.readouterr().out) and bool(printed) is bool(said)
    monkeypatch.setattr("sys.argv", ["lint", "--update-limits"])
    assert not command.main()
    assert tomllib.loads(limits.read_text()) == {"function_names": {"package": 1}}


def test_files_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported tree has the same files as the repository."""
    patterns = ("torch_xla/*.py", ":!torch_xla/test")
    expected = sources.tracked_files(*patterns)
    monkeypatch.setenv("PATH", "")
    assert sources.tracked_files(*patterns) == expected != []
