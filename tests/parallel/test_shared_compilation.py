"""A job compiles each program once: counts over the job, restarts, lost processes, constants made of the ordinal."""

from __future__ import annotations

import ast
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.test_multi_host import free_port
from tests.support import fast_compile_flags
from tests.support.helpers import run_script

RUN = """
    import sys
    from pathlib import Path
    from tests.programs import shared_compilation_programs

    shared_compilation_programs.main({mode!r}, Path({folder!r}), {processes})
"""

#: Where the processes of a job find what another has compiled.
PLACES = ("one folder", "a folder for each", "no folder")


def run_job(mode: str, folder: Path, processes: int, place: str = "one folder", **variables: str) -> list[Any]:
    """Run a job; return the exit code of each rank, or what it reported."""
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "PJRT_DEVICE": "CPU",
        "OMP_NUM_THREADS": "1",
        "TORCH_XLA_COMPILE_POLICY": "compile",
        "XLA_FLAGS": fast_compile_flags.FLAGS,
        "XLA_PERSISTENT_CACHE_PATH": str(folder / "programs") if place == "one folder" else "",
    }
    if place == "a folder for each":
        environment["FOLDERS"] = str(folder)
    code = RUN.format(mode=mode, folder=str(folder), processes=processes)
    done = run_script(code, check=False, **environment | variables)
    assert done.returncode == 0, done.stderr
    reports = []
    for rank, exit_code in enumerate(ast.literal_eval(done.stdout.splitlines()[-1])):
        file = folder / f"{rank}.json"
        reports.append(exit_code or json.loads(file.read_text()))
        file.unlink(missing_ok=True)
    assert all(isinstance(report, dict) or report < 0 for report in reports), done.stderr
    return reports


def totals(reports: list[Any], *names: str) -> tuple[int, ...]:
    return tuple(sum(report[name] for report in reports if isinstance(report, dict)) for name in names)


COUNTED = ("JobProgramsCompiled", "JobProgramsFetched", "PersistentCacheHit")


def check_counts(folder: Path, processes: int, place: str) -> None:
    first = run_job("train", folder, processes, place)
    assert all(report["value"] == first[0]["value"] for report in first)
    compiled, fetched, loaded = totals(first, *COUNTED)
    # A rank that comes late finds the file.
    assert compiled >= 3 and fetched + loaded == compiled * (processes - 1)
    folders = {"one folder": 1, "a folder for each": processes, "no folder": 0}[place]
    assert len(list(folder.rglob("*.xla"))) == compiled * folders, "the distinct programs"
    again = run_job("train", folder, processes, place)
    assert [report["value"] for report in again] == [report["value"] for report in first]
    if folders:
        assert totals(again, *COUNTED) == (0, 0, compiled * processes), "a restart compiles nothing"


@pytest.mark.parametrize(
    ("processes", "place"), [(2, "one folder"), (4, "one folder"), (2, "a folder for each"), (2, "no folder")]
)
def test_each_program_is_compiled_once(tmp_path: Path, processes: int, place: str) -> None:
    check_counts(tmp_path, processes, place)


@pytest.mark.sweep
@pytest.mark.parametrize(("processes", "place"), [(4, place) for place in PLACES] + [(8, place) for place in PLACES])
def test_each_program_is_compiled_once_in_larger_jobs(tmp_path: Path, processes: int, place: str) -> None:
    check_counts(tmp_path, processes, place)


def test_a_program_of_one_rank_does_not_wait_for_the_others(tmp_path: Path) -> None:
    """Whichever rank the hash chooses."""
    reports = run_job("one_rank", tmp_path, 2)
    assert [report["value"] for report in reports] == [5.0, 4 * 15 + 5 * (2 + 3 + 4 + 5)]
    assert reports[0]["JobProgramsCompiled"] + reports[0]["JobProgramsFetched"] == 1
    assert totals(reports, "JobProgramsCompiled") == (len(list(tmp_path.rglob("*.xla"))),)


def check_replacement(folder: Path, processes: int) -> None:
    reports = run_job("killed", folder, processes, XLA_FLAGS="")
    killed = [rank for rank, report in enumerate(reports) if report == -signal.SIGKILL]
    others = [report for rank, report in enumerate(reports) if rank not in (0, *killed)]
    assert len(killed) == 1 and 0 not in killed
    assert len({report["value"] for report in others}) == 1 and len(others) == processes - 2
    assert totals(others, "JobProgramsCompiled", "JobProgramsFetched") == (1, processes - 3)
    assert totals(others, "JobCompilersReplaced") == (len(others),)


def test_a_process_that_is_killed_while_it_compiles_is_replaced(tmp_path: Path) -> None:
    check_replacement(tmp_path, 4)


@pytest.mark.sweep
def test_a_process_that_is_killed_while_it_compiles_is_replaced_in_a_larger_job(tmp_path: Path) -> None:
    check_replacement(tmp_path, 8)


def test_a_damaged_program_of_another_process_is_compiled_again(tmp_path: Path) -> None:
    first = run_job("train", tmp_path, 2)
    for file in (tmp_path / "programs").iterdir():
        file.write_bytes(file.read_bytes()[:-100])
    again = run_job("train", tmp_path, 2)
    assert [report["value"] for report in again] == [report["value"] for report in first]
    assert totals(again, "JobProgramsCompiled") == totals(first, "JobProgramsCompiled")
    assert totals(run_job("train", tmp_path, 2), "JobProgramsCompiled") == (0,), "the files were replaced"


def test_constants_made_of_the_ordinal_are_reported_once(tmp_path: Path) -> None:
    """With the line: an exponent is a constant, a number in arithmetic is an input unless it is 0, 1 or -1."""
    reports = run_job("ordinals", tmp_path, 4, XLA_IR_DEBUG="1")
    assert [report["value"] for report in reports] == [14.0 + 10.0 * rank for rank in range(4)]
    messages = [" ".join(message.split()) for report in reports for message in report["messages"]]
    assert len(messages) == 2, messages
    for op in ("aten::pow.Tensor_Scalar", "aten::add.Tensor"):
        (found,) = [message for message in messages if op in message]
        assert "shared_compilation_programs.py:" in found and "compile different programs" in found
