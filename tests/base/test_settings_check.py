"""The environment is checked when torch_xla is imported: misspelt settings warn, invalid ones are one error."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from tests.support.helpers import run_script
from torch_xla._engine.base import settings_check

#: Name -> what the warning says, None if there is none.
NAMES = {
    "CPU_NUM_DEVICE": "did you mean CPU_NUM_DEVICES?",
    "XLA_USE_BF61": "did you mean XLA_USE_BF16?",
    "TORCH_XLA_STROM": "did you mean TORCH_XLA_COMPILE_POLICY (formerly TORCH_XLA_STORM)?",
    "TORCHXLA_LOGS": "did you mean TORCH_XLA_LOGS?",
    "PJRT_DEVICES": "did you mean PJRT_DEVICE?",
    "TORCH_XLA_SOMETHING_ELSE": "`torch-xla settings` lists them",
    "XLA_USE_SPMD": "call torch_xla.runtime.use_spmd()",
    "PJRT_CPU_ASYNC_CLIENT": None,
    "XLA_PYTHON_CLIENT_PREALLOCATE": None,
    "XLA_SOMETHING_ELSE": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_unknown_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    advice = NAMES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings_check.check_environment()
    texts = [" ".join(str(warning.message).split()) for warning in caught]  # without the line breaks of wrapping
    found = [text for text in texts if name in text]
    assert (len(found), advice is None or advice in found[0]) == (advice is not None, True)


#: Variable, its value, and the reason in the error.
VALUES = [
    ("CPU_NUM_DEVICES", "four", "is not an integer of at least 1"),
    ("PT_XLA_DEBUG_LEVEL", "9", "is not 0, 1 or 2"),
    ("TORCH_XLA_COMPILE_POLICY", "x", "is not one of auto,"),
    ("TORCH_XLA_FIRST_RUN", "eagr", "is not auto, eager or compile"),
    ("XLA_USE_BF16", "maybe", "is not 1 or 0"),
    ("XLA_PERSISTENT_CACHE_PATH", "/proc/nope", "is not a usable folder"),
]


@pytest.mark.parametrize(("name", "value", "reason"), VALUES)
def test_invalid_value(name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_XLA_COMPILE_POLICY", raising=False)  # of the tests; it has precedence
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^environment variable {name}={value!r} {re.escape(reason)}"):
        settings_check.check_environment()


def test_all_invalid_values_are_in_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "new" / "folder"))
    for name, value, _ in VALUES[:2]:
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"CPU_NUM_DEVICES(.*\n)*.*PT_XLA_DEBUG_LEVEL(.*\n)*.*explain invalid-setting$"
    ):
        settings_check.check_environment()


def test_invalid_flag_of_the_cache_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "/proc/nope")
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_READ_ONLY", "maybe")
    with pytest.raises(ValueError, match=r"^environment variable XLA_PERSISTENT_CACHE_READ_ONLY='maybe' is not 1 or 0"):
        settings_check.check_environment()


def test_import_raises() -> None:
    done = run_script("import torch_xla", check=False, PT_XLA_DEBUG_LEVEL="9")
    assert done.returncode == 1 and "ValueError: environment variable PT_XLA_DEBUG_LEVEL='9'" in done.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--xla_nope=1 --xla_foo", "Unknown flags in XLA_FLAGS: --xla_nope=1 --xla_foo"),
        ("--xla_cpu_enable_fast_math=maybe", "Couldn't interpret value maybe for flag xla_cpu_enable_fast_math"),
        ("/no/such/file", 'Could not open file "/no/such/file"'),
        ("--xla_cpu_enable_fast_math=false", None),
    ],
)
def test_xla_flags(flags: str, reason: str | None) -> None:
    """XLA would end the process."""
    code = """
    import torch, torch_xla
    try:
        print((torch.ones(2, device="xla") + 1).tolist())
    except ValueError as error:
        print(error)
    """
    done = run_script(code, XLA_FLAGS=flags)
    expected = "[2.0, 2.0]" if reason is None else f"environment variable XLA_FLAGS={flags!r}: {reason}"
    assert done.stdout.splitlines()[0] == expected or done.stdout.startswith(expected)
