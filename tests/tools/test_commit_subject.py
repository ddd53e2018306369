"""The commit-msg hook accepts `area: imperative summary` of at most 72 characters, and explains what else is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commit_subject import problem_of, subject_of

from tests.support.scripts import ROOT

GOOD = [
    "docs: remove figures that no command reproduces",
    "compilation: trim the heap after compiling graphs of 40 or more ops",
    "lowering/rules: embed constants",
    "ci, docs: process pages in parallel",
    "csrc: bring back the table",
    'Revert "recorder: fuse reads"',
    "Merge branch 'topic'",
    "fixup! recorder: fuse reads",
]

BAD = {
    "": "no area",
    "Fix the recorder": "no area",
    "Recorder: fix": "no area",
    "recorder: Fix it": "in lower case",
    "docs: README says less": "in lower case",
    "recorder: fixes a race": "imperative",
    "recorder: added a test": "imperative",
    "recorder: adding a test": "imperative",
    "recorder: built once": "imperative",
    "recorder: no more races": "imperative",
    "recorder: fix a race.": "full stop",
    f"recorder: fix {'x' * 60}": "has 74 characters",
}


@pytest.mark.parametrize("subject", GOOD)
def test_good(subject: str) -> None:
    assert problem_of(subject) is None


@pytest.mark.parametrize(("subject", "said"), BAD.items())
def test_bad(subject: str, said: str) -> None:
    assert said in (problem_of(subject) or "")


def test_subject_of_message() -> None:
    assert subject_of("\n# a comment of git\narea: fix it\n\nbody\n") == "area: fix it"


def test_hook(tmp_path: Path) -> None:
    """As a hook of a repository: git rejects the commit and prints why; a range is checked afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    script = f"{sys.executable} {ROOT / 'scripts' / 'commit_subject.py'}"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    def commit(subject: str, *flags: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return run("git", *identity, "commit", "--allow-empty", *flags, "-m", subject)

    assert run("git", "init", "-q").returncode == 0
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.write_text(f'#!/bin/sh\nexec {script} "$1"\n')
    hook.chmod(0o755)
    assert commit("area: begin").returncode == 0
    failed = commit("area: began")
    assert failed.returncode != 0 and "commit subject 'area: began' begins with 'began'" in failed.stderr
    assert commit("area: began", "--no-verify").returncode == 0
    assert commit("area: go on").returncode == 0
    assert run(*script.split(), "--range", "HEAD~1..HEAD").returncode == 0
    assert "'area: began'" in run(*script.split(), "--range", "HEAD~2..HEAD").stderr
