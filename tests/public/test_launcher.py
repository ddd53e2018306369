"""The launcher, with local workers and with a fake gcloud and a fake ssh."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import multi_host_program
from tests.support import scripts as processes
from torch_xla._engine.base.settings import settings
from torch_xla.distributed import xla_dist
from torch_xla.distributed.launcher import job_attempt, remote_scripts
from torch_xla.distributed.launcher import launch as launch_module
from torch_xla.distributed.launcher.heartbeats import Heartbeats
from torch_xla.distributed.launcher.options import get_args_parser, parse_job

STEP = "torch_xla.core.xla_model::mark_step"
NASTY = "a b; touch PWNED & 'single' \"double\" $(touch PWNED) `touch PWNED` \\ $HOME * \t é\nsecond line"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Run in an empty folder; a process that still runs there at the end is a leak."""
    monkeypatch.chdir(tmp_path)
    settings.reload()
    yield tmp_path
    settings.reload()
    deadline = time.monotonic() + 10
    while left_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_in(tmp_path)


def left_in(folder: Path) -> list[str]:
    """Return the command lines of other processes with this working folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and Path(os.readlink(process / "cwd")) == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def local(count: int, script: str, *options: str) -> int:
    return xla_dist.main([f"--local={count}", *options, "--", "bash", "-c", script, "arg0", NASTY])


SSH = """\
#!/bin/bash
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
echo "$host" >> ssh.log
[ -e down ] && [ "$(cat down)" = "$host" ] && { rm down; exit 255; }
FAKE_HOST=$host exec sh -c "$*"
"""

GCLOUD = """\
#!/bin/bash
echo "$*" | head -1 | cut -c1-70 >> gcloud.log
[ "$1 $2 $3" = "compute tpus tpu-vm" ] || exit 2
if [ "$4" = describe ]; then cat "$5.json" 2>/dev/null || { echo "NOT_FOUND: $5" >&2; exit 1; }; exit; fi
for last; do case "$last" in --worker=*) worker=${last#*=};; esac; done
FAKE_HOST=$5.$worker exec sh -c "${last#--command=}"
"""


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"ssh": SSH, "gcloud": GCLOUD}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(launch_module, "_HEALTH_SECONDS", 0.1)
    monkeypatch.setattr(launch_module, "_PAUSE", 0.1)
    return tmp_path


def describe(folder: Path, name: str, *addresses: str, **fields: str) -> None:
    endpoints = [{"ipAddress": address} for address in addresses]
    part = folder / f"{name}.part"  # atomically: the fake gcloud may be reading it
    part.write_text(json.dumps({"state": "READY", "networkEndpoints": endpoints, **fields}))
    part.replace(folder / f"{name}.json")


PRINT_JOB = (
    'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $XLA_EMIT_STEPLOG '
    '${FAKE_HOST:-here} $MASTER_ADDR $PJRT_DEVICE"'
)


def test_workers_on_this_machine(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert local(3, f"{PRINT_JOB}; echo error >&2; printf 'a\\rb\\nno end'") == 0
    out, err = capfd.readouterr()
    head = [f"[{i}] {i}/3 {i}/3 0/1 1 here 127.0.0.1 " for i in range(3)]
    assert sorted(out.splitlines()) == sorted(
        head + [f"[{i}] {text}" for i in range(3) for text in ("a", "b", "no end")]
    )
    assert sorted(err.splitlines()) == [f"[{i}] error" for i in range(3)]


DUMP = [
    sys.executable,
    "-c",
    "import os, sys, json; print(json.dumps([os.environ['X'], sys.argv[1:]]))",
    NASTY,
    "",
    "--x",
]


@pytest.mark.parametrize("where", ["--local=1", "--hosts=user@far", "--tpu=pod"])
def test_arguments_are_quoted(fakes: Path, capfd: pytest.CaptureFixture[str], where: str) -> None:
    describe(fakes, "pod", "10.0.0.1")
    assert xla_dist.main([where, f"--env=X={NASTY}", "--", *DUMP]) == 0
    out = capfd.readouterr().out
    assert json.loads(out.removeprefix("[0] ")) == [NASTY, [NASTY, "", "--x"]]
    assert not (fakes / "PWNED").exists()


def test_hosts_and_machines_of_tpus(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert xla_dist.main(["--hosts", "a,me@b", "--", "bash", "-c", PRINT_JOB]) == 0
    expected = ["[0] 0/2 0/1 0/2 1 a a ", "[1] 1/2 0/1 1/2 1 me@b a "]
    assert sorted(line.replace("CPU", "") for line in capfd.readouterr().out.splitlines()) == expected
    describe(fakes, "pod", "10.0.0.1", "10.0.0.2")
    assert xla_dist.main(["--tpu", "pod", "--zone=z", "--", "bash", "-c", PRINT_JOB]) == 0
    expected = [f"[{i}] {i}/2 0/1 {i}/2 1 pod.{i} 10.0.0.1 TPU" for i in range(2)]
    assert sorted(capfd.readouterr().out.splitlines()) == expected
    assert "compute tpus tpu-vm describe pod --zone=z --format=json" in (fakes / "gcloud.log").read_text()
    describe(fakes, "v", "10.0.0.3")
    describe(fakes, "w", "10.0.0.4")
    assert xla_dist.main(["--vm", "v", "--vm=w", "--", "bash", "-c", PRINT_JOB]) == 0
    expected = [f"[{i}] {i}/2 0/1 {i}/2 1 {name}.0 10.0.0.3 TPU" for i, name in enumerate("vw")]
    assert sorted(capfd.readouterr().out.splitlines()) == expected


def test_one_job_on_two_hosts_with_two_processes_each(fakes: Path) -> None:
    job = ["--hosts=127.0.0.1,127.0.0.2", f"--tpuvm-server-port={free_port()}", "--env=PJRT_DEVICE=CPU"]
    job += [f"--env={name}={value}" for name, value in processes.server_variables().items()]
    assert xla_dist.main([*job, "--", *processes.PYTHON, multi_host_program.__file__, str(fakes), "2"]) == 0
    assert multi_host_program.check_weights(fakes, 4) == [(4, 0, 0), (4, 1, 0), (4, 0, 1), (4, 1, 1)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_worst_exit_code_and_termination_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    script = "[ $RANK = 0 ] && exit 3; [ $RANK = 1 ] && exit 7; trap 'echo ended; exit 0' TERM; sleep 600 & wait"
    assert local(3, script) == 7
    assert "[2] ended" in capfd.readouterr().out
    assert local(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 600") == 128 + signal.SIGKILL
    assert local(1, "exit 255") == 255


def test_worker_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_scripts, "PATIENCE", 1)
    assert local(2, "[ $RANK = 1 ] && exit 1; trap '' TERM; sleep 600 & while :; do wait; done") == 1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_terminates_all_workers(fakes: Path, number: int, code: int) -> None:
    def interrupt() -> None:
        until(lambda: len(list(fakes.glob("started.*"))) == 2)
        os.kill(os.getpid(), number)

    # A shell starts background processes with SIGINT ignored, including these tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        result = xla_dist.main(["--hosts=a,b", "--", "bash", "-c", "touch started.$RANK; sleep 600 & wait"])
    except SystemExit as exit_:
        result = int(exit_.code or 0)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert result == code  # the fixture checks that no process is left


def test_workers_end_when_launcher_is_killed(place: Path) -> None:
    command = [sys.executable, "-m", "torch_xla.distributed.xla_dist", "--local=2", "--"]
    root = str(Path(xla_dist.__file__).parents[2])
    launcher = subprocess.Popen(
        [*command, "bash", "-c", "touch started.$RANK; sleep 600 & wait"], env={**os.environ, "PYTHONPATH": root}
    )
    until(lambda: len(list(place.glob("started.*"))) == 2)
    launcher.kill()
    launcher.wait()  # the fixture checks that no process is left


# The first process of many containers does not wait for the orphans that it adopts: they stay, as zombies.
INIT_THAT_NEVER_WAITS = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
worker = subprocess.Popen(["bash", "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker.stdin.write("export X=1\\n\\n")
worker.stdin.flush()
assert sys.argv[2] == "immediately" or worker.stdout.readline() == "started\\n"
worker.stdin.close()
worker.wait(30)
"""


@pytest.mark.parametrize("ends", ["immediately", "while it runs"])
def test_end_of_a_launcher_where_zombies_stay(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Immediately: perhaps before the command's process leads a group."""
    monkeypatch.setattr(remote_scripts, "PATIENCE", 600)
    command = ["--local=1", "--", "bash", "-c", "(sleep 600 &); echo started; sleep 600"]
    job = parse_job(get_args_parser().parse_args(command))
    script = remote_scripts.run_script(job, {remote_scripts.MARK: "zombies", "RANK": "0"})
    subprocess.run([sys.executable, "-c", INIT_THAT_NEVER_WAITS, script, ends], check=True)


def test_restart_after_a_lost_connection(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert xla_dist.main(["--hosts=a,b", "--", "bash", "-c", "kill -KILL $$"]) == 128 + signal.SIGKILL
    assert xla_dist.main(["--hosts=a,b", "--", "bash", "-c", "exit 255"]) == 254
    assert "restart" not in capfd.readouterr().err  # a command that failed or was killed is not a lost connection
    # The fake ssh loses the connection once: the check passes, the start does not.
    (fakes / "tools" / "ssh").write_text(SSH.replace("[ -e down ]", '[ "${*/setsid bash/}" != "$*" ] && [ -e down ]'))
    (fakes / "down").write_text("b")
    assert xla_dist.main(["--hosts=a,b", "--", "bash", "-c", "echo ran $RANK"]) == 0
    captured = capfd.readouterr()
    assert "lost the connection to worker 1 (b); restart 1 of at most 50" in captured.err
    assert captured.out.splitlines().count("[1] ran 1") == 1
    (fakes / "down").write_text("b")
    assert xla_dist.main(["--hosts=a,b", "--max-restarts=0", "--", "bash", "-c", "echo ran $RANK"]) == 255
    assert "giving up after 0 restarts" in capfd.readouterr().err


def test_restart_after_missing_heartbeats(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XLA_UNEVEN_HEARTBEAT_TIMEOUT", "2")
    monkeypatch.setattr(job_attempt, "_TICK", 0.1)
    settings.reload()
    script = (
        f"echo {STEP} >&2; [ -e again.$RANK ] && exit 0; touch again.$RANK; "
        f"[ $RANK = 0 ] && echo {STEP} >&2; echo waits; sleep 600"
    )
    assert local(2, script) == 0
    captured = capfd.readouterr()
    assert re.search(
        r"worker 1 has made no step for \d+ s \(XLA_UNEVEN_HEARTBEAT_TIMEOUT=2\), after 1 steps; "
        "other workers have made up to 2 steps; restart 1",
        captured.err,
    )
    assert STEP not in captured.err + captured.out and captured.out.count("waits") == 2
    assert local(2, f"echo {STEP} >&2; [ $RANK = 0 ] && echo {STEP}; sleep 600", "--max-restarts=0") == 124


def test_lines_that_mention_a_step_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["see torch_xla.torch_xla::sync for more", f"progress 1/2 {STEP}", f"{STEP}s", f" {STEP} "]
    assert local(1, f"printf '%s\\n' {shlex.join(lines)} {STEP} torch_xla.torch_xla::sync") == 0
    assert capfd.readouterr().out.splitlines() == [f"[0] {line}" for line in lines]


def test_heartbeats() -> None:
    now = 0.0
    beats = Heartbeats(3, uneven=10, even=20, clock=lambda: now)
    now = 1000.0
    assert beats.failure_reason() is None  # no worker has made a step
    for _ in range(2):
        for ordinal in range(3):
            beats.beat(ordinal)
    now += 20
    assert beats.failure_reason() is None
    now += 1
    assert beats.failure_reason() == (
        "worker 0 has made no step for 21 s (XLA_EVEN_HEARTBEAT_TIMEOUT=20), after 2 steps"
        "; the other workers have stopped, too"
    )
    beats.beat(1)
    beats.beat(2)
    assert beats.failure_reason() == (
        "worker 0 has made no step for 21 s (XLA_UNEVEN_HEARTBEAT_TIMEOUT=10), after 2 steps"
        "; other workers have made up to 3 steps"
    )
    beats.worker_exited(0)
    now += 15
    assert beats.failure_reason() is None
    beats.beat(0)  # its last lines, read late
    now += 15
    assert beats.failure_reason() == (
        "worker 1 has made no step for 30 s (XLA_EVEN_HEARTBEAT_TIMEOUT=20), after 3 steps"
        "; the other workers have stopped, too"
    )
    beats.worker_exited(1)
    beats.worker_exited(2)
    assert beats.failure_reason() is None


def test_heartbeats_name_a_worker_that_is_behind() -> None:
    now = 0.0
    beats = Heartbeats(3, uneven=10, even=20, clock=lambda: now)
    beats.beat(0)
    beats.beat(0)  # ahead, and without output for longer than the others
    now += 1
    beats.beat(1)
    now += 1
    beats.beat(2)
    now += 9
    assert beats.failure_reason() is None
    now += 1
    assert beats.failure_reason() == (
        "worker 1 has made no step for 11 s (XLA_UNEVEN_HEARTBEAT_TIMEOUT=10), after 1 steps"
        "; other workers have made up to 2 steps"
    )


def test_unusable_hosts(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (fakes / "down").write_text("b")
    assert xla_dist.main(["--hosts=a,b", "--", "touch", "ran"]) == 126
    assert "worker 1 (b), exit code 255" in capfd.readouterr().err and not (fakes / "ran").exists()
    assert xla_dist.main(["--tpu=none", "--", "true"]) == 126
    assert "NOT_FOUND: none" in capfd.readouterr().err
    describe(fakes, "creating", "10.0.0.1", state="CREATING")
    assert xla_dist.main(["--tpu=creating", "--", "true"]) == 126
    assert "TPU creating is in state CREATING" in capfd.readouterr().err


def test_waits_for_maintenance(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def maintain(seen: str) -> None:
        until((fakes / seen).exists)
        describe(fakes, "pod", "10.0.0.1", health="UNHEALTHY_MAINTENANCE")
        (fakes / "sick").touch()
        time.sleep(0.5)
        describe(fakes, "pod", "10.0.0.1")

    # Maintenance begins while the command runs, which then fails: a reason to restart.
    describe(fakes, "pod", "10.0.0.1")
    thread = threading.Thread(target=maintain, args=("once",))
    thread.start()
    script = "[ -e once ] && exit 0; touch once; until [ -e sick ]; do sleep 0.05; done; exit 1"
    assert xla_dist.main(["--tpu=pod", "--", "bash", "-c", script]) == 0
    thread.join()
    assert "pod worker 0 became unhealthy; restart 1" in capfd.readouterr().err
    # A job that has not started waits for the end of maintenance.
    describe(fakes, "pod", "10.0.0.1", health="UNHEALTHY_MAINTENANCE")
    timer = threading.Timer(0.5, describe, (fakes, "pod", "10.0.0.1"))
    timer.start()
    assert xla_dist.main(["--tpu=pod", "--", "true"]) == 0
    timer.join()
    assert "waiting for pod worker 0 to be healthy" in capfd.readouterr().err


def test_dry_run_prints_commands_that_work(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert xla_dist.main(["--hosts=a,b", "--dry-run", f"--env=X={NASTY}", "--", *DUMP]) == 0
    out = capfd.readouterr().out
    assert not (fakes / "ssh.log").exists()
    words = shlex.split(out)
    assert words.count("ssh") == 2 and words[words.index("--") + 1] == "a"
    done = subprocess.run(["bash", "-c", out.split("\nprintf ")[0]], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [NASTY, [NASTY, "", "--x"]]


CONDA = """\
conda() { [ "$1" = activate ] && [ "$2" = "my env" ] && export CONDA_ENV=$2; }
"""
DOCKER = """\
#!/bin/bash
printf '%s\\n' "$*" >> docker.log
[ "$1" = run ] || exit 0
while [ "$1" != image ]; do [ "$1" = -e ] && export "$2"; shift; done  # a name alone keeps its value
shift; exec "$@"
"""


def test_conda_and_docker(fakes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = fakes / "base" / "etc" / "profile.d"
    folder.mkdir(parents=True)
    (folder / "conda.sh").write_text(CONDA)
    for name, text in {"conda": f"#!/bin/bash\necho {shlex.quote(str(fakes / 'base'))}\n", "docker": DOCKER}.items():
        (fakes / "tools" / name).write_text(text)
        (fakes / "tools" / name).chmod(0o755)
    show = 'echo "$CONDA_ENV,$X,$RANK"'
    assert xla_dist.main(["--local=1", "--conda-env=my env", "--env=X=1 2", "--", "bash", "-c", show]) == 0
    assert capfd.readouterr().out == "[0] my env,1 2,0\n"
    assert xla_dist.main(["--local=1", "--conda-env=other", "--", "true"]) == 126
    assert "conda activate failed" in capfd.readouterr().err
    flags = ["--docker-image=image", "--docker-run-flag=-v '/a b:/c'", "--docker-run-flag=--privileged"]
    assert xla_dist.main(["--local=1", *flags, "--env=X=1 2", "--", "bash", "-c", show]) == 0
    assert capfd.readouterr().out == "[0] ,1 2,0\n"
    log = (fakes / "docker.log").read_text()
    (name,) = set(
        re.findall(r"run --rm --name (torch_xla_dist_\w+) --label TORCH_XLA_DIST=\w+ --network=host -e PYTHON", log)
    )
    assert log.startswith("run --rm") and "1 2" not in log
    assert "-v /a b:/c --privileged image bash" in log
    assert xla_dist.main(["--local=2", *flags, "--docker-container=mine", "--", "bash", "-c", "exit $RANK"]) == 1
    log = (fakes / "docker.log").read_text()
    assert all(f"rm -f mine_{rank}\n" in log and f"--name mine_{rank} " in log for rank in range(2))
    # A second job with the default name removes only its own container, and its workers have different names.
    flags += ["--env=HOME=/x"]
    assert xla_dist.main(["--local=2", *flags, "--", "bash", "-c", "[ $HOME = /x ]"]) == 0
    log = (fakes / "docker.log").read_text()
    assert len({name, *re.findall(r"--name (torch_xla_dist_\w+)", log)}) == 3
    assert "rm -f torch_xla_dist " not in log and log.count(f"rm -f {name}") <= 1
    assert xla_dist.main(["--local=1", *flags, "--restart-tpuvm-pod-server", "--", "true"]) == 0
    assert "ps -aq --filter label=TORCH_XLA_DIST" in (fakes / "docker.log").read_text()


def test_termination_of_earlier_jobs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All jobs of the user are terminated: with the real variable, also those of concurrent tests.
    mark = f"{remote_scripts.MARK}_{os.getpid()}"
    monkeypatch.setattr(remote_scripts, "MARK", mark)
    earlier = subprocess.Popen(["sleep", "600"], env={mark: "earlier"})
    other = subprocess.Popen(["sleep", "600"], env={"OTHER": f"{mark}=no"})
    try:
        assert local(1, "true") == 0 and earlier.poll() is None
        assert local(1, "true", "--restart-tpuvm-pod-server") == 0
        assert earlier.wait(10) == -signal.SIGTERM and other.poll() is None
    finally:
        earlier.kill()
        other.kill()
        earlier.wait()
        other.wait()


def test_env_name_passes_local_value(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("X", NASTY)
    assert xla_dist.main(["--local=1", "--env=X", "--", *DUMP]) == 0
    assert json.loads(capfd.readouterr().out.removeprefix("[0] "))[0] == NASTY


ERRORS = [
    ([], "specify where to run"),
    (["--local=1", "--hosts=a"], "specify where to run"),
    (["--local=-1"], "specify where to run"),
    (["--tpu=a", "--vm=b"], "a TPU is driven by its own hosts"),
    (["--hosts=-oProxyCommand=x"], "'-oProxyCommand=x' is not a valid host name"),
    (["--hosts=a;b"], "'a;b' is not a valid host name"),
    (["--local=1", "--docker-image=i", "--conda-env=c"], "are mutually exclusive."),
    (["--local=1", "--docker-container=c"], "require --docker-image"),
    (["--local=1", "--env=X"], "Environment variable to distribute (X) should follow the form: X=Y"),
    (["--local=1", "--env=A;B=1"], "should follow the form: X=Y"),
    (["--local=1", "--env=XRT_TPU_CONFIG=x"], "XRT_TPU_CONFIG should not be in the training command provided"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_errors_in_options(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        xla_dist.main([*options, "--", "true"])
    assert caught.value.code == 2 and message in " ".join(capsys.readouterr().err.split())


def test_parser_as_used_by_accelerate() -> None:
    """Its launcher parses a dummy command line, fills in the rest, and rejects any docker option that has a value."""
    options, _ = get_args_parser().parse_known_args(["--tpu", "pod", "--positional", "", "--restart-tpuvm-pod-server"])
    assert all(value in ("", None) for name, value in vars(options).items() if name.startswith("docker_"))
    options.positional = ["accelerate-launch", "--tpu", "script.py"]
    options.env = ["A=1"]
    job = parse_job(argparse.Namespace(**vars(options)))
    assert job.tpus == ("pod",) and job.command == ("accelerate-launch", "--tpu", "script.py")
    assert job.env == (("A", "1"),) and job.end_earlier_jobs
