"""Tests how clean_debian reads apt's and pip's settings, and its steps; it bootstraps no Debian."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import ROOT
from tests.tools import clean_debian, version_matrix, wheel_on_debian

CONFIG = """\
:env:.find-links='/wheels'
global.extra-index-url='\\nfile:///pypi/simple\\nfile:///pypi-more/simple'
global.find-links='/elsewhere'
install.no-cache-dir='true'
freeze.all='true'
"""


def test_settings_of_pip() -> None:
    assert clean_debian.pip_variables(CONFIG) == {
        "PIP_FIND_LINKS": "/wheels",
        "PIP_EXTRA_INDEX_URL": "file:///pypi/simple file:///pypi-more/simple",
        "PIP_NO_CACHE_DIR": "true",
    }


def test_paths_are_mapped_into_the_chroot(tmp_path: Path) -> None:
    for name in ("a", "a-b"):
        (tmp_path / name).mkdir()
    values = {"PIP_X": f"{tmp_path}/a file://{tmp_path}/a-b https://host{tmp_path}/a {tmp_path}/none", "PIP_Y": "a"}
    assert clean_debian.paths(values) == {tmp_path / "a", tmp_path / "a-b"}
    host = f"{clean_debian.HOST}{tmp_path}"
    assert clean_debian.inside(values) == {
        "PIP_X": f"{host}/a file://{host}/a-b https://host{tmp_path}/a {tmp_path}/none", "PIP_Y": "a",
    }  # fmt: skip


def test_mirror() -> None:
    listed = "bookworm-updates http://host/updates/\nbookworm http://host/debian/\n"
    assert clean_debian.mirror(listed) == "http://host/debian"
    with pytest.raises(SystemExit, match="--mirror"):
        clean_debian.mirror("")


def test_steps_name_existing_paths() -> None:
    commands = " ".join(step.command for step in clean_debian.STEPS)
    for name in ("scripts/build_torch_wheels.sh", "docker/steps.sh"):
        assert (ROOT / name).exists() and Path(name).name in commands
    targets = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in targets for target in ("demo", "test", "smoke", "test-debian"))
    assert len({step.name for step in clean_debian.STEPS}) == len(clean_debian.STEPS)


def test_the_wheel_is_checked_with_each_minor_release_of_torch() -> None:
    supported = {version_matrix.minor(cell.torch) for cell in version_matrix.MATRIX}
    assert {version_matrix.minor(torch) for torch in wheel_on_debian.TORCHES} == supported
    assert "\ntest-wheel:" in (ROOT / "Makefile").read_text()
    for torch in wheel_on_debian.TORCHES:
        install, check = wheel_on_debian.make_steps(torch, "a.whl")
        assert f"torch=={torch} jax" in install.command and check.words == (f"check_wheel: torch {torch}",)
