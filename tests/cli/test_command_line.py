"""``torch-xla``: help, exit codes, completion, and which commands import torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.helpers import ROOT
from torch_xla._engine import explain
from torch_xla.cli import command_table, completion, entry

PYTHON = [sys.executable, "-W", "error"]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m torch_xla`` with these words in a new process."""
    command = [*PYTHON, "-m", "torch_xla", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | variables)


def test_help_lists_each_command_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in command_table.COMMANDS.values():
        assert f"\n  {command.name:<11} {command.summary}\n" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "Exit codes: 0 success" in text


@pytest.mark.parametrize("name", command_table.COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: torch-xla {name}")
    if name != "run":  # its exit code is that of the command
        assert "exit codes:" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["setings"], "'setings' is not a command. Did you mean `settings`?"),
        (["quux"], "`torch-xla --help` lists the commands"),
        (["explain", "no-such-page"], "there is no page 'no-such-page'"),
        (["settings", "CPU_NUM_DEVICE"], "Did you mean CPU_NUM_DEVICES?"),
    ],
)
def test_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["aot", "train.py"], "the following arguments are required: --target"),
        (["aot", "--target", "v5e:2x2", "/no/such.py"], "the script /no/such.py does not exist"),
        (["report", "/no/such.py"], "the script /no/such.py does not exist"),
        (["plan", "--targets", "h100", "/no/such.py"], "the script /no/such.py does not exist"),
        (["report", "--last", "0", "x.py"], "expected at least 1"),
        (["cache", "prune"], "specify --unused-for, --max-size or --old-formats"),
        (["cache", "prune", "--max-size", "many"], "'many' is not a size such as 500MB or 2GB"),
        (["completion", "csh"], "invalid choice: 'csh'"),
    ],
)
def test_argument_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--help"], ["explain"], ["settings"], ["cache", "list"], ["aot", "--help"], ["completion", "bash"]]
)
def test_commands_that_do_not_import_torch(words: Sequence[str], tmp_path: Path) -> None:
    """They answer in a tenth of a second, also where torch or jax cannot be imported."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n"
        "import runpy; runpy.run_module('torch_xla', run_name='__main__', alter_sys=True)"
    )
    command = [*PYTHON, "-c", f"import sys; sys.argv = ['torch-xla', *{list(words)!r}]\n{program}"]
    env = os.environ | {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout or words == ["explain"]


def test_settings_exit_code() -> None:
    assert run("settings").returncode == 0
    done = run("settings", "--set", CPU_NUM_DEVICES="two")
    assert done.returncode == 1
    assert "CPU_NUM_DEVICES='two' is not an integer" in done.stdout


def test_command_that_replaces_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(command_table.os, "execv", lambda path, words: calls.append(words))
    script = tmp_path / "train.py"
    script.touch()
    entry.main(["aot", "--target", "h100", str(script), "--epochs", "1"])
    entry.main(["run", "--local=2", "--", "python", "train.py"])
    assert [words[words.index("-m") :] for words in calls] == [
        ["-m", "torch_xla.aot", "--target", "h100", str(script), "--epochs", "1"],
        ["-m", "torch_xla.distributed.xla_dist", "--local=2", "--", "python", "train.py"],
    ]


def test_closed_pipe_is_not_an_error() -> None:
    """``torch-xla settings | head -1``"""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PYTHON, "-m", "torch_xla", "settings"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""


REPORTED = """
import sys, torch, torch_xla
x = torch.ones(4, device="xla")
for _ in range(5):
    x = x * 2
    torch_xla.sync()
print(x.tolist(), sys.argv[1:], __name__)
"""


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(7)", 7), ("raise ValueError('of the script')", 1)])
def test_report_of_a_script(ending: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(REPORTED + ending)
    page = tmp_path / "report.html"
    options = ["-o", str(page)] if not ending else []
    done = run("report", *options, str(script), "--epochs", "1")
    assert done.returncode == code, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == "[32.0, 32.0, 32.0, 32.0] ['--epochs', '1'] __main__"
    if ending:
        assert "5 steps" in "\n".join(others)
    else:
        assert others == [f"report: {page}"] and page.read_text().lstrip().startswith("<!")
    if code == 1:
        assert done.stderr.splitlines()[-1] == "ValueError: of the script"
        assert "report_script" not in done.stderr and "runpy" not in done.stderr


def complete(line: str) -> list[str]:
    """Return what bash offers at the end of the line."""
    script = completion.bash_script(completion.choices())
    words = line.split(" ")
    program = f"{script}\nCOMP_WORDS=({' '.join(map(repr, words))})\nCOMP_CWORD={len(words) - 1}\n_torch_xla\n"
    done = subprocess.run(
        ["bash", "-c", program + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bash_completion(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(completion.bash_script(completion.choices()))
    subprocess.run(["bash", "-n", script], check=True)
    assert complete("torch-xla re") == ["report"]
    assert set(complete("torch-xla ")) >= set(command_table.COMMANDS)
    assert complete("torch-xla cache ex") == ["export"]
    assert complete("torch-xla cache prune --max") == ["--max-size"]
    assert complete("torch-xla aot --target v5e --st") == ["--steps"]
    assert set(complete("torch-xla completion ")) >= {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_completions_parse(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in command_table.COMMANDS)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    script = tmp_path / "completion"
    script.write_text(text)
    subprocess.run([shell, "-n", script], check=True)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pages in place of those of the package."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "changing-shapes.md").write_text(
        "---\nhide: toc\n---\n# Changing shapes\n\n<!-- not run -->\n```python\nx[:3]\n```\n"
        "See [caching](../../explanation/caching.md#keys), "
        "[recompilation](recompilation.md) and [jax](https://docs.jax.dev).\n"
    )
    (folder / "recompilation.md").write_text("# A recompilation\n\nText.\n")
    monkeypatch.setattr(explain.importlib.resources, "files", lambda package: tmp_path)
    return folder


def test_explain(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["explain"]) == 0
    assert capsys.readouterr().out == "changing-shapes  Changing shapes\nrecompilation    A recompilation\n"
    assert entry.main(["explain", "Changing_Shapes"]) == 0
    assert capsys.readouterr().out == (
        "# Changing shapes\n\n```python\nx[:3]\n```\nSee caching (docs/explanation/caching.md#keys), "
        "recompilation (torch-xla explain recompilation) and jax (https://docs.jax.dev).\n"
    )
    assert entry.main(["explain", "changing-shape"]) == 2
    assert "Did you mean changing-shapes?" in capsys.readouterr().err


def test_package_has_the_command_and_the_pages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = project["project"]["scripts"]["torch-xla"].partition(":")
    assert getattr(importlib.import_module(module), name) is entry.main
    assert project["tool"]["setuptools"]["package-data"]["torch_xla._engine.explain"] == ["pages/*.md"]


def test_page_of_the_documentation_is_up_to_date() -> None:
    """``python scripts/docs/command_line.py`` writes it."""
    spec = importlib.util.spec_from_file_location("command_line", ROOT / "scripts" / "docs" / "command_line.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page()


def test_pages_of_the_package_have_titles() -> None:
    assert all(explain.page_titles().values())
    for slug in explain.page_titles():
        assert explain.read_page(slug).startswith("# ")
