"""The settings table of environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import run_script
from torch_xla import settings as door
from torch_xla._engine.base.settings import Settings, variables
from torch_xla._engine.device import hardware_detection


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A table that has read nothing yet, in an environment without its variables."""
    for variable in variables():
        for name in variable.spellings:
            monkeypatch.delenv(name, raising=False)
    return Settings()


def test_every_default_can_be_read(settings: Settings) -> None:
    for variable in variables():
        settings.get(variable.name)


def test_defaults(settings: Settings) -> None:
    assert settings.XLA_TRIM_GRAPH_SIZE == 10_000
    assert settings.XLA_SYNC_WAIT is False
    assert settings.XLA_METRICS_PERCENTILES[:2] == (0.01, 0.05)
    assert settings.cache_dir == Path.home() / ".cache" / "torch_xla"


def test_value_is_read_once_and_again_after_reload(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    assert settings.CPU_NUM_DEVICES == 4
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    assert settings.CPU_NUM_DEVICES == 4
    settings.reload()
    assert settings.CPU_NUM_DEVICES == 8


def test_alias_gives_way_to_the_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIM_GRAPH_SIZE", "7")
    assert settings.get("XLA_TRIM_GRAPH_SIZE") == settings.get("TRIM_GRAPH_SIZE") == 7
    monkeypatch.setenv("XLA_TRIM_GRAPH_SIZE", "9")
    settings.reload()
    assert settings.XLA_TRIM_GRAPH_SIZE == 9


def test_empty_is_unset(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_AUTO_SYNC", "")
    assert settings.TORCH_XLA_AUTO_SYNC is True


@pytest.mark.parametrize(("text", "count"), [("0,1", 2), (" 3 ", 1), ("-1", 0), ("", 0)])
def test_an_empty_list_of_gpus_is_none_of_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, text: str, count: int
) -> None:
    assert settings.CUDA_VISIBLE_DEVICES is None
    settings.reload()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    monkeypatch.setattr(hardware_detection, "settings", settings)
    assert text == settings.CUDA_VISIBLE_DEVICES and hardware_detection.gpu_count() == count


def test_cache_folder(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings.cache_dir == tmp_path / "torch_xla"
    settings.reload()
    monkeypatch.setenv("TORCH_XLA_CACHE_DIR", "~/builds")
    assert settings.cache_dir == Path.home() / "builds"


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("TRIM_GRAPH_SIZE", "many", "an integer of at least 1"),
        ("CPU_NUM_DEVICES", "0", "an integer of at least 1"),
        ("XLA_SYNC_WAIT", "maybe", r"1 or 0 \(also true/false, yes/no, on/off\)"),
        ("XLA_METRICS_PERCENTILES", "0.5:1", "colon-separated numbers between 0 and 1"),
    ],
)
def test_error_names_variable_value_and_form(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, value: str, form: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^environment variable {name}='{value}' is not {form}"):
        settings.get(name)
    assert f"ERROR: environment variable {name}='{value}'" in door.table()


def test_values_cannot_be_assigned(settings: Settings) -> None:
    with pytest.raises(AttributeError, match="set the environment variable XLA_SYNC_WAIT"):
        settings.XLA_SYNC_WAIT = True


def test_unknown_name(settings: Settings) -> None:
    with pytest.raises(KeyError, match="NO_SUCH is not a setting"):
        settings.get("NO_SUCH")


def test_printed_table_lists_everything(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_SYNC_WAIT", "yes")
    text = door.table()
    assert all(f"  {variable.name} = " in text for variable in variables() if variable.name != "XLA_SYNC_WAIT")
    assert "* XLA_SYNC_WAIT = 1   (default: 0)" in text
    assert max(map(len, text.splitlines())) <= 120


def test_number_of_devices_is_read_at_the_first_device() -> None:
    run_script(
        """
        import os
        import torch_xla
        import torch_xla.runtime as xr
        os.environ["CPU_NUM_DEVICES"] = "2"
        assert xr.global_runtime_device_count() == 2
        """,
        imports="the import decides which libraries it locates",
        PJRT_DEVICE="CPU",
    )
