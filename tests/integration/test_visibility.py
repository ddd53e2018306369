"""What other users of a host can see: command lines, listening sockets, and files."""

from __future__ import annotations

import ast
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.public.test_launcher import DOCKER, describe, fakes, place  # noqa: F401  # the latter two are fixtures
from tests.support.helpers import ROOT, run_script
from torch_xla.distributed import xla_dist

#: Prints the command lines of all processes that contain the secret, then the variable. Its own has another spelling.
LOOK = """cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -a 's3cr[3]t'; echo "$X" """

WHERE = {
    "here": ["--local=1"],
    "ssh": ["--hosts=far"],
    "gcloud": ["--tpu=pod"],
    "docker": ["--local=1", "--docker-image=image"],
}


@pytest.mark.parametrize("where", WHERE)
def test_values_are_on_no_command_line(fakes: Path, capfd: pytest.CaptureFixture[str], where: str) -> None:  # noqa: F811
    describe(fakes, "pod", "10.0.0.1")
    (fakes / "tools" / "docker").write_text(DOCKER)
    (fakes / "tools" / "docker").chmod(0o755)
    assert xla_dist.main([*WHERE[where], "--env=X=s3cr3t", "--", "bash", "-c", LOOK]) == 0
    assert capfd.readouterr().out == "[0] s3cr3t\n"


#: One of two processes runs a collective with the other, then prints the addresses on which it listens, and the modes
#: of its files.
JOB = """
import os, socket, struct, sys
from pathlib import Path
import torch, torch_xla
import torch_xla.core.xla_model as xm

def listening():
    sockets = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                host, port = words[1].split(":")
                numbers = (int(host[i : i + 8], 16) for i in range(0, len(host), 8))
                yield socket.inet_ntop(family, struct.pack(f"={len(host) // 8}I", *numbers)), int(port, 16)

assert xm.all_reduce("sum", torch.ones(1, device="xla")).item() == 2
for host, port in listening():
    print("listens", host, port)
xm.rendezvous("all have looked")
"""

#: Where torch's store listens, which rank 0 creates outside torchrun: torch has no argument for its address.
TORCH_STORE = "MASTER_PORT"


@pytest.mark.parametrize("rendezvous_kind", ["file", "localhost"])
def test_local_job_listens_on_loopback_only(tmp_path: Path, rendezvous_kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    if rendezvous_kind == "file":  # as spawn does
        shared["TORCH_XLA_RENDEZVOUS_FILE"] = str(tmp_path / "store")
    else:
        shared |= {"MASTER_ADDR": "localhost", TORCH_STORE: port}
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda rank: run_script(JOB, **shared, RANK=rank, LOCAL_RANK=rank), "01"))
    found = {tuple(line.split()[1:]) for one in done for line in one.stdout.splitlines() if line.startswith("listens")}
    hosts = {host.removeprefix("::ffff:") for host, number in found if number != port or rendezvous_kind == "file"}
    assert hosts == {"127.0.0.1"}, found


#: Calls of the package that listen, or make other code listen, by file: their test, or why others may connect.
LISTENERS = {
    "torch_xla/_engine/job/coordination.py": {
        "bind": "public/test_spawn.py::test_port_in_use_is_skipped",  # never listens
        "jax.distributed.initialize": "integration/test_visibility.py::test_local_job_listens_on_loopback_only",
        "set_gloo_address": "integration/test_visibility.py::test_local_job_listens_on_loopback_only",
        "dist.rendezvous": "integration/test_visibility.py::test_local_job_listens_on_loopback_only",  # TORCH_STORE
    },
    "torch_xla/_engine/job/liveness.py": {
        "create_server": "on loopback in a local job; a peer that does not send the token of the job's store is closed",
    },
    "torch_xla/debug/profiler.py": {"start_server": "the user requests it, and jax has no argument for the address"},
    "torch_xla/distributed/launcher/launch.py": {"create_server": "on 127.0.0.1, and closed immediately"},
    "torch_xla/distributed/xla_multiprocessing.py": {"bind": "never listens"},
    "torch_xla/distributed/xla_backend.py": {
        "new_group": "the caller names the backend",
        "init_process_group": "the backend xla, at the launcher's store",
    },
    "torch_xla/utils/utils.py": {"bind": "never listens"},
    "torch_xla/experimental/distributed_checkpoint/_process_group.py": {
        "new_group": "torch's gloo, at the machine's address"
    },
}
_LISTENS = {
    "bind", "listen", "create_server", "jax.distributed.initialize", "dist.rendezvous", "start_server",
    "TCPStore", "new_group",
    "set_gloo_address", "HTTPServer", "start_unix_server", "init_process_group", "Listener",
}  # fmt: skip


def test_every_listener_is_in_the_table() -> None:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "torch_xla").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            name = call if call in _LISTENS else call.rpartition(".")[2]
            if name in _LISTENS and not call.endswith("_p.bind"):  # a primitive of jax binds arguments
                found.setdefault(str(path.relative_to(ROOT)), set()).add(name)
    assert found == {file: set(calls) for file, calls in LISTENERS.items()}


#: Modules that unpickle files: from where, and why no other user can write there.
UNPICKLE = {
    "torch_xla/_engine/compilation/persistent_cache/serialized_program.py": "the cache folder, which only the user may "
    "write, and the key-value store of the job, which runs the same code",
    "torch_xla/aot/api.py": "a file that the program names, as for torch.load",
}


def test_unpickling_modules_are_listed() -> None:
    found = set()
    for path in (ROOT / "torch_xla").rglob("*.py"):
        calls = (ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if {"pickle.loads", "pickle.load", "pickle.Unpickler"} & set(calls):
            found.add(str(path.relative_to(ROOT)))
    assert found == set(UNPICKLE)


#: Prints the modes of files and folders of a run, with the usual umask: only the file that the user saves is public.
MODES = """
import os
os.umask(0o022)
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def work(index):
    if index == 0:
        store = os.environ["TORCH_XLA_RENDEZVOUS_FILE"]
        print("job", oct(os.stat(os.path.dirname(store)).st_mode & 0o777), flush=True)

xmp.spawn(work, nprocs=2, start_method="fork")
xm.save(torch.ones(2, device="xla"), os.environ["SAVED"])
print("saved", oct(os.stat(os.environ["SAVED"]).st_mode & 0o777))
"""


def test_modes_of_what_a_run_writes(tmp_path: Path) -> None:
    """The folder of a job's store is private; test_cache_folders.py tests the caches."""
    done = run_script(MODES, SAVED=str(tmp_path / "saved"))
    assert done.stdout.split("\n") == ["job 0o700", "saved 0o644", ""]
