"""scripts/build_wheel.py: the names of libraries, the split of the recorder, and what it needs of the system."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torch_xla._engine import recorder
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.recorder import build, prebuilt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "scripts" / "build_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("extension", [build.recorder_extension(), library.kernel_extension()], ids=lambda e: e.what)
def test_the_package_finds_what_the_script_stores(
    script: ModuleType, extension: build.Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{extension.name}:{prebuilt.abi_tag(extension.is_module)}"
    stored = script.place_of(ROOT, torch.__version__, name)
    glob = Path.glob  # rglob calls it since Python 3.13
    library_name = f"{extension.name}.so"

    def find(self: Path, pattern: str | Path, **options: bool) -> list[Path]:
        is_library = str(pattern).endswith(library_name)
        return [self / "wheel" / library_name] if is_library else list(glob(self, pattern, **options))

    monkeypatch.setattr(Path, "glob", find)
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert build._find_packaged_build(extension) == stored


def test_the_half_without_python_names_no_symbol_of_it(script: ModuleType) -> None:
    """It is linked into the libraries of all Pythons."""
    sources = sorted((ROOT / "torch_xla/_engine/recorder/csrc").rglob("*.cpp"))
    plain = [file for file in sources if not script.includes_python(file)]
    assert 20 < len(plain) < len(sources)
    assert not [file.name for file in plain if "PyObject" in file.read_text() or "py::" in file.read_text()]


def test_the_platform_of_the_wheel_is_what_the_libraries_need(script: ModuleType) -> None:
    found = script.glibc_version([Path(recorder.bindings().__file__)])
    assert (2, 17) <= tuple(map(int, found.split("_"))) <= (2, 50)


def test_the_interpreter_of_the_tests_is_found(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = script.find_python(sys.executable)
    assert found is not None and found.tag == prebuilt.abi_tag(True)
    assert script.find_python("python2.99") is None
    assert "python2.99 is not installed, or without headers" in capsys.readouterr().out
