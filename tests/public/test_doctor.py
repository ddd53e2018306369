"""``python -m torch_xla.doctor`` and ``python -m torch_xla.build`` in broken environments.

Each run is a separate interpreter, because the doctor checks the import.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import scripts
from torch_xla._engine.base import diagnostic_commands
from torch_xla._engine.compat import versions
from torch_xla.doctor import accelerators, command, device_check, environment
from torch_xla.doctor.report import DoctorReport

#: The kernel allows no user, including root, to create files there.
READ_ONLY = Path("/sys/torch_xla")


def run(module: str, *paths: Path, **environment: str) -> tuple[int, str]:
    """Return the exit code and the output, with whitespace collapsed because lines are wrapped."""
    env = scripts.environment() | environment
    env["PYTHONPATH"] = os.pathsep.join([*map(str, paths), env["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-m", module], env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, " ".join((done.stdout + scripts.own_output(done.stderr)).split())


def without_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment without compilers and without cached builds."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "CXX": "", "TORCH_XLA_CACHE_DIR": str(tmp_path / "cache")}


def test_working_installation_with_unknown_variable() -> None:
    code, said = run("torch_xla.doctor", XLA_SYNC_WIAT="1", XLA_IR_DEBUG="1")
    assert code == 0, said
    assert (
        "The environment variable XLA_SYNC_WIAT is set, but torch_xla does not read it. -> Did you mean XLA_SYNC_WAIT?"
        in said
    )
    assert "XLA_IR_DEBUG=1" in said and "xla:0: CPU:0" in said and "_torch_xla_recorder.so" in said
    assert said.endswith("The device computed a tensor; the findings are advice.")


def test_no_compiler(tmp_path: Path) -> None:
    code, said = run("torch_xla.doctor", **without_compiler(tmp_path))
    assert code == 1
    assert "A C++ compiler was not found: it is needed once per torch release. -> apt-get install g++" in said
    assert "torch_xla cannot build its recorder: a C++ compiler was not found." in said
    assert "THE DEVICE CHECK FAILED" in said


def test_build_without_a_compiler(tmp_path: Path) -> None:
    code, said = run("torch_xla.build", **without_compiler(tmp_path))
    assert code == 1
    assert said == "torch_xla cannot build its recorder: a C++ compiler was not found. apt-get install g++"


def test_read_only_cache() -> None:
    code, said = run("torch_xla.doctor", TORCH_XLA_CACHE_DIR=str(READ_ONLY))
    assert code == 0, said  # falls back to the user's default folder
    assert f"The cache folder {READ_ONLY} is not writable: " in said
    assert "-> Set TORCH_XLA_CACHE_DIR to a writable folder" in said
    assert "torch_xla: cannot use the cache folder for the recorder" in said


def test_older_jaxlib(tmp_path: Path) -> None:
    """The installed jaxlib with the metadata of another release."""
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.submodule_search_locations is not None
    (tmp_path / "jaxlib").mkdir()
    for entry in Path(spec.submodule_search_locations[0]).iterdir():
        (tmp_path / "jaxlib" / entry.name).symlink_to(entry)
    version = tmp_path / "jaxlib" / "version.py"
    text = version.read_text()
    version.unlink()
    release = environment.installed_version("jaxlib")
    assert release is not None and release in text
    version.write_text(text.replace(release, "0.4.1"))
    (tmp_path / "jaxlib-0.4.1.dist-info").mkdir()
    (tmp_path / "jaxlib-0.4.1.dist-info" / "METADATA").write_text("Name: jaxlib\nVersion: 0.4.1\n")
    code, said = run("torch_xla.doctor", tmp_path)
    assert code == 1
    jax = environment.installed_version("jax")
    assert f"jaxlib 0.4.1 is from another release than jax {jax}. -> pip install jaxlib=={jax}" in said
    assert "jax FAILED" in said and "RuntimeError: jaxlib" in said


def test_unavailable_tpu() -> None:
    code, said = run("torch_xla.doctor", PJRT_DEVICE="TPU")
    assert code == 1
    assert "PJRT_DEVICE requests a TPU: no TPU chip found (/dev/accel0, /dev/vfio/0)" in said
    assert "devices FAILED" in said and "but jax has no tpu backend" in said
    assert "or set PJRT_DEVICE=CPU" in said


def test_untested_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.TESTED, "torch", ("1.0", "1.1"))
    report = DoctorReport()
    environment.check_environment(report)
    (found,) = report.findings
    assert found.what.startswith("torch_xla was tested with torch 1.0 to 1.1, not with 2.")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("CPU_NUM_DEVICES", "two", "CPU_NUM_DEVICES='two' is not an integer of at least 1"),
        ("XLA_USE_SPMD", "1", "call torch_xla.runtime.use_spmd()"),
        ("XLA_SOMETHING_ELSE", "1", "torch-xla settings"),
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str) -> None:
    monkeypatch.setenv(name, text)
    report = DoctorReport()
    environment.check_environment(report)
    assert any(said in finding.what + finding.cure for finding in report.findings)


def test_xla_flags_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    report = DoctorReport()
    environment.check_environment(report)
    assert not report.findings


def test_a_configuration_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        accelerators.hardware_detection, "requested_device", lambda: (_ for _ in ()).throw(ValueError("what it says"))
    )
    report = DoctorReport()
    accelerators.check_accelerators(report)
    assert [finding.what for finding in report.findings] == ["what it says"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 6)", "ended its process (signal SIGABRT)"),
        ("import sys; sys.exit(3)", "ended its process (exit code 3)"),
        ("import time; time.sleep(60)", "did not finish within 0 s"),
    ],
)
def test_probe_that_dies_or_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, said: str) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(f"import json\nprint(json.dumps({{'step': 'devices'}}), flush=True)\n{program}\n")
    monkeypatch.setattr(device_check, "_PROBE", probe)
    if "sleep" in program:
        monkeypatch.setitem(device_check._LIMITS, "devices", 0.2)
    report = DoctorReport()
    assert not device_check.run_device_check(report)
    assert said in report.findings[0].what and "`devices`" in report.findings[0].what
    assert "THE DEVICE CHECK FAILED" in command.render_text(report, works=False)


def test_detection_of_diagnostic_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, looks in (
        (["python", "-m", "torch_xla.doctor"], True),
        (["python", "-W", "error", "-mtorch_xla.build", "--into-package"], True),
        (["python", "-m", "torch_xla.settings", "--set"], True),
        (["python", "-m", "torch_xla", "cache", "list"], True),
        (["python", "-m", "torch_xla.aot"], False),
        (["python", "-m", "torch_xla.cli.report_script", "train.py"], False),
        (["python", "-m", "pytest", "torch_xla.doctor"], False),
    ):
        start = next(i for i, word in enumerate(words) if word.startswith("-m"))
        module = start + 1 if words[start] == "-m" else start
        monkeypatch.setattr(sys, "orig_argv", words)
        monkeypatch.setattr(sys, "argv", ["-m", *words[module + 1 :]])
        assert diagnostic_commands.is_diagnostic_command() is looks, words
        monkeypatch.setattr(sys, "argv", ["program.py", *words[module + 1 :]])  # its value after startup
        assert not diagnostic_commands.is_diagnostic_command()
    monkeypatch.setattr(sys, "argv", ["/usr/bin/torch-xla", "settings"])
    assert diagnostic_commands.is_diagnostic_command()
