"""benchmarks.guest: its models train as on the CPU, its processes are placed as each condition says. No times."""

from __future__ import annotations

import os

import pytest
import torch

import torch_xla.debug.metrics as met
from benchmarks.guest.__main__ import Result, check_same_training, format_condition, format_summary
from benchmarks.guest.conditions import CGROUPS, Condition, Contestant, limited_cgroup
from benchmarks.guest.contestant import Training
from benchmarks.guest.jobs import JOBS, GuestJob

#: Sampled numbers differ between devices; 124 million parameters take too long.
RANDOM = ("policy net, 64 wide", "VAE")
LONG = ("GPT-2 124M",)
SMALL = "MLP, 3 layers of 256"


def _compute_loss_and_gradient(job: GuestJob, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model, batch = job.model().eval().to(device), tuple(tensor.to(device) for tensor in job.batch())
    loss = job.loss(model, batch)
    loss.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return loss.detach().cpu(), torch.cat(gradients).cpu()


@pytest.mark.parametrize("job", [job for job in JOBS if job.name not in RANDOM + LONG], ids=lambda job: job.name)
def test_models_equal_the_cpu(job: GuestJob) -> None:
    (loss, gradient), (expected_loss, expected) = (_compute_loss_and_gradient(job, d) for d in ("xla:0", "cpu"))
    torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-5)
    error, norm = torch.linalg.vector_norm(gradient - expected), torch.linalg.vector_norm(expected)
    assert error <= 1e-3 * norm


def test_replicas_on_one_core() -> None:
    contestant = Contestant(SMALL, "cpu", Condition("test", replicas=2, cores=1))
    try:
        affinities = [os.sched_getaffinity(process.pid) for process in contestant._processes]
        answers = contestant.ask("first")
        assert len(contestant.ask("train 2 0")) == 2
    finally:
        contestant.end()
    assert affinities == [{min(os.sched_getaffinity(0))}] * 2
    assert answers[0]["losses"] == answers[1]["losses"] and len(answers[0]["losses"]) == 5


def test_a_captured_contestant_replays_its_step() -> None:
    met.clear_counters()
    training = Training(next(job for job in JOBS if job.name == SMALL), "captured")
    expected = Training(training.job, "cpu")
    losses = [training.train_step().item() for _ in range(10)]
    torch.testing.assert_close(losses, [expected.train_step().item() for _ in range(10)], rtol=1e-4, atol=1e-5)
    assert met.counter_value("ReplayedSteps") >= 5


def test_a_failed_contestant_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with exit code"):
        Contestant("no such job", "cpu", Condition("test"))


def _can_create_cgroups() -> bool:
    return any(os.access(folder, os.W_OK) and (folder / file).exists() for folder, file in CONTROLLERS)


CONTROLLERS = ((CGROUPS / "cpu", "cpu.cfs_quota_us"), (CGROUPS, "cgroup.subtree_control"))


@pytest.mark.skipif(not _can_create_cgroups(), reason="this user can't create cgroups")
def test_quota() -> None:
    with limited_cgroup("test", 0.5) as procs:
        files = {file.name: file.read_text().split() for file in procs.parent.glob("cpu.*") if file.is_file()}
    assert files.get("cpu.cfs_quota_us", files.get("cpu.max", [""]))[0] == "50000"
    assert not procs.exists()


def test_other_training_is_an_error() -> None:
    results = {"eager": Result(losses=[2.0]), "default": Result(losses=[2.3])}
    check_same_training(JOBS[0], results)
    results["default"].losses = [float("nan")]
    with pytest.raises(RuntimeError, match=r"first loss is 2 in eager, nan with default"):
        check_same_training(JOBS[0], results)


def test_tables() -> None:
    rows = {
        "a": {"eager": Result(2.0, 2.0, 100), "default": Result(1.0, 4.0, 200, 0.5, 1.5), "kernels": Result(8.0, 16.0)},
        "b": {"eager": Result(2.0, 2.0, 100), "default": Result(4.0, 1.0, 200, 0.5, 1.5), "kernels": Result(2.0, 4.0)},
    }
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in format_condition(rows).splitlines()]
    assert lines[2] == [
        "a",
        "1.00",
        "2.00",
        "0.50",
        "4.00",
        "2.00",
        "2.00",
        "200",
        "100",
        "2.00",
        "0.50",
        "1.5",
        "4.00 (8.00)",
    ]
    assert lines[-1] == ["geometric mean", "", "", "1.00", "", "", "1.00", "", "", "2.00", "", "", "2.00 (4.00)"]
    summary, losses = (
        [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
        for table in format_summary({"quiet": rows}).split("\n\n")
    )
    assert summary == ["quiet", "1.00", "2.00 (b)", "1.00", "2.00 (a)", "2.00", "2.00 (a)"]
    assert losses == ["quiet", "2.00 (b)", "1.00 (a)"]
