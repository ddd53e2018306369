"""Installation scripts: record their calls of gcloud, make and Python with fake programs."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

SCRIPTS = sorted(p for folder in ("scripts", "test", "docker") for p in (ROOT / folder).rglob("*.sh"))
#: Records its arguments, one line per call; copies the archive that is sent.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $(printf %s "$*" | tr '\\n' ';')" >> {folder}/calls
for word in "$@"; do case "$word" in *.tar.gz) [ -f "$word" ] && cp "$word" {folder}/sent.tar.gz;; esac; done
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that lists the calls."""
    for name in ("gcloud", "make", "python"):
        (tmp_path / name).write_text(STAND_IN.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    return tmp_path / "calls"


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ROOT / script), *words], capture_output=True, text=True)


@pytest.mark.parametrize("script", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in SCRIPTS])
def test_shell_can_read_it(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0


def test_scripts_exist() -> None:
    assert len(SCRIPTS) >= 6


def test_tpu_vm(calls: Path) -> None:
    done = run("scripts/setup_tpu_vm.sh", "mine", "a-zone", "v6e-8", "--spot")
    assert done.returncode == 0, done.stderr
    create, copy, install = calls.read_text().splitlines()
    assert create == (
        "gcloud compute tpus tpu-vm create mine --zone=a-zone --accelerator-type=v6e-8 --version=v2-alpha-tpuv6e --spot"
    )
    assert " mine:torch_xla.tar.gz --zone=a-zone --worker=all" in copy
    assert 'pip install -q "./torch_xla_source[tpu]";' in install and "-m torch_xla.build" in install
    with tarfile.open(calls.parent / "sent.tar.gz") as archive:
        assert "torch_xla_source/pyproject.toml" in archive.getnames()


def test_existing_tpu_vm(calls: Path) -> None:
    assert run("scripts/setup_tpu_vm.sh", "mine", "a-zone", "--install-only").returncode == 0
    assert [line.split()[4] for line in calls.read_text().splitlines()] == ["scp", "ssh"]


def test_tpu_vm_dry_run(calls: Path) -> None:
    done = run("scripts/setup_tpu_vm.sh", "mine", "a-zone", "--dry-run")
    assert done.stdout.startswith("gcloud compute tpus tpu-vm create mine --zone=a-zone")
    assert not calls.exists()


@pytest.mark.parametrize("words", [["mine"], ["mine", "a-zone", "h100"], ["mine", "a-zone", "--what"]])
def test_tpu_vm_errors(calls: Path, words: list[str]) -> None:
    assert run("scripts/setup_tpu_vm.sh", *words).returncode == 2
    assert not calls.exists()


def test_update(calls: Path) -> None:
    assert run("scripts/update_torch_wheels.sh", "tpu", "cuda").returncode == 0
    first, _, *others = calls.read_text().splitlines()
    assert first == f"python -m pip install {ROOT}[tpu,cuda]"
    assert others == ["python -m torch_xla.build", "python -m torch_xla.doctor"]


def test_tests(calls: Path) -> None:
    assert run("test/run_tests.sh", "-k", "digits").returncode == 0
    assert run("test/cpp/run_tests.sh").returncode == 0
    assert calls.read_text().splitlines() == ["make test PYTEST_ARGS=-k digits", "make test-sanitize"]


@pytest.mark.parametrize("script", ["build_torch_wheels", "update_torch_wheels", "setup_tpu_vm"])
def test_help(script: str) -> None:
    done = run(f"scripts/{script}.sh", "--help")
    assert done.returncode == 0 and f"scripts/{script}.sh" in done.stdout


def test_dockerfile_names_existing_files() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert "COPY docker/steps.sh" in text and "USER user" in text
    assert "examples/train_digits.py" in text and (ROOT / "examples" / "train_digits.py").exists()
