"""``xla_dist --cluster``: the variables of emulated schedulers, and a job of two processes that use them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import scripts
from tests.support.helpers import ROOT
from torch_xla.distributed import xla_dist
from torch_xla.distributed.launcher import cluster
from torch_xla.distributed.launcher.options import get_args_parser, parse_job
from torch_xla.distributed.launcher.workers import LaunchError

SLURM = {
    "SLURM_JOB_ID": "4321", "SLURM_STEP_NODELIST": "node[007-009]", "SLURM_NTASKS": "6", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_NODEID": "1",
}  # fmt: skip
OMPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def names(rank: int, size: int, local: int, locals_: int, host: str, port: int) -> dict[str, str]:
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": locals_}
    return {name: str(value) for name, value in (found | {"MASTER_ADDR": host, "MASTER_PORT": port}).items()}


#: The variables of a scheduler, the port option, and the variables of the command.
FOUND = {
    "slurm": (SLURM, None, names(3, 6, 1, 2, "node007", 4321 % 4096 + 61440)),
    "slurm, a task for each node": (
        SLURM | {"SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"},
        29500,
        names(2, 3, 0, 1, "node007", 29500) | {"TORCH_XLA_DIST": "slurm-node007-29500"},
    ),
    "slurm, nodes that differ": (
        SLURM | {"SLURM_STEP_NODELIST": "gpu1,gpu4", "SLURM_STEP_TASKS_PER_NODE": "4,2"},
        29500,
        names(3, 6, 1, 2, "gpu1", 29500),
    ),
    "ompi": (OMPI, 29500, names(2, 4, 0, 2, "10.96.0.1", 29500)),
}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JOB_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", FOUND)
def test_what_schedulers_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, port, expected = FOUND[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert cluster.torchrun_env(os.environ, port) == expected


def _fake_kubernetes(labels: dict[str, str], subdomain: str | None) -> Any:
    """The kubernetes package, with a cluster that has one Indexed Job of four pods."""
    metadata = SimpleNamespace(
        name="train-2-x", labels={"job-name": "train"}, owner_references=[SimpleNamespace(controller=True, kind="Job")]
    )
    pod = SimpleNamespace(metadata=metadata, spec=SimpleNamespace(subdomain=subdomain))
    job = SimpleNamespace(metadata=SimpleNamespace(name="train", labels=labels), spec=SimpleNamespace(parallelism=4))
    core = SimpleNamespace(
        list_namespaced_pod=lambda **_: SimpleNamespace(items=[pod]),
        list_namespaced_service=lambda _: SimpleNamespace(items=[]),
    )
    module: Any = types.ModuleType("kubernetes")
    module.config = SimpleNamespace(load_incluster_config=lambda: None)
    module.client = SimpleNamespace(
        CoreV1Api=lambda: core,
        BatchV1Api=lambda: SimpleNamespace(read_namespaced_job=lambda **_: job),
        exceptions=SimpleNamespace(ApiException=type("ApiException", (Exception,), {})),
    )
    return module


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this process a pod of a job with these labels and this subdomain."""
    from jax._src.clusters import K8sCluster

    def be_a_pod(labels: dict[str, str], subdomain: str | None) -> None:
        monkeypatch.setitem(sys.modules, "kubernetes", _fake_kubernetes(labels, subdomain))
        monkeypatch.setattr(K8sCluster, "_namespace", classmethod(lambda _: "default"))
        monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.3")
        for name, value in {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "JOB_COMPLETION_INDEX": "2",
            "HOSTNAME": "x",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("_pod", "_job", "_headless_svc", "_controller"):
            getattr(K8sCluster, name).__func__.cache_clear()

    yield be_a_pod
    for name in ("_pod", "_job", "_headless_svc", "_controller"):
        getattr(K8sCluster, name).__func__.cache_clear()


JOB_SET = "jobset.sigs.k8s.io/jobset-name"


@pytest.mark.parametrize(
    ("labels", "subdomain", "host"),
    [({}, "pods", "train-0.pods"), ({JOB_SET: "many"}, None, "train-0.many")],
    ids=["job", "jobset"],
)
def test_kubernetes(kubernetes: Any, labels: dict[str, str], subdomain: str | None, host: str) -> None:
    kubernetes(labels, subdomain)
    expected = names(2, 4, 0, 1, host, 55527) | {"TORCH_XLA_DIST": f"k8s-{host}-55527"}
    assert cluster.torchrun_env(os.environ) == expected


def test_kubernetes_without_a_service(kubernetes: Any) -> None:
    """jax's error message is included."""
    kubernetes({}, None)
    with pytest.raises(LaunchError, match="--cluster: Pods within a job need a headless service"):
        cluster.torchrun_env(os.environ)


def test_no_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    assert xla_dist.main(["--cluster", "--", "true"]) == 126
    assert "no scheduler has started this process. Supported are Slurm (srun)" in capsys.readouterr().err


def test_rank_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SLURM | {"SLURM_PROCID": "6"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="slurm reports process index 6 of 6 processes"):
        cluster.torchrun_env(os.environ)


@pytest.mark.parametrize(
    ("variables", "count"),
    [({}, 1), ({"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "2"}, 1),
     ({"SLURM_TASKS_PER_NODE": "8"}, 8), ({"SLURM_TASKS_PER_NODE": "3", "SLURM_NODEID": "5"}, 1)],
)  # fmt: skip
def test_local_process_count(variables: dict[str, str], count: int) -> None:
    assert cluster.local_process_count(variables) == count


@pytest.mark.parametrize("option", ["--local=2", "--conda-env=x", "--docker-image=x", "--restart-tpuvm-pod-server"])
def test_incompatible_options(option: str) -> None:
    with pytest.raises(ValueError, match="--cluster"):
        parse_job(get_args_parser().parse_args(["--cluster", option, "--", "true"]))


def test_dry_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in OMPI.items():
        monkeypatch.setenv(name, value)
    assert xla_dist.main(["--cluster", "--dry-run", "--env=A=b c", "--", "python", "train.py"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("env RANK=2 WORLD_SIZE=4 ") and printed.endswith(" 'A=b c' python train.py\n")


PROGRAM = """
import json, torch, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
total = xm.all_reduce(xm.REDUCE_SUM, torch.tensor([xr.global_ordinal() + 1.0], device="xla"))
print(json.dumps([xr.global_ordinal(), xr.world_size(), xr.local_ordinal(), total.tolist()]))
"""


def test_a_job_of_two_tasks() -> None:
    """Each process is started separately, as by srun; they rendezvous and run a collective."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    launch = [sys.executable, "-m", "torch_xla.distributed.xla_dist", "--cluster", f"--tpuvm-server-port={port}", "--"]
    shared = os.environ | scripts.server_variables() | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU"} | SLURM
    shared |= {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    tasks = [
        subprocess.Popen(
            [*launch, *scripts.PYTHON, "-c", PROGRAM], stdout=subprocess.PIPE, text=True,
            env=shared | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_NODEID": "0"},
        )
        for i in range(2)
    ]  # fmt: skip
    # gloo prints messages.
    results = [json.loads(task.communicate(timeout=240)[0].splitlines()[-1]) for task in tasks]
    assert results == [[0, 2, 0, [3.0]], [1, 2, 1, [3.0]]]
