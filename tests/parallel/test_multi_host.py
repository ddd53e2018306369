"""A job on two hosts: torchrun with two nodes, at one address and in two network namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs import multi_host_program
from tests.support import scripts
from tests.support.helpers import run_script
from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import host_address, replicas


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def nodes(
    folder: Path, address: str, each: int = 1, prefixes: Sequence[Sequence[str]] = ((), ())
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a torchrun of host_program for each command prefix; end all of them after the block.

    torchrun and what it starts are forks of a process that has imported it all (see scripts.PYTHON). What they print is
    in ``node0``, ``node1`` in the folder.
    """
    environment = os.environ | {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    environment |= scripts.server_variables()
    where = [f"--nnodes={len(prefixes)}", f"--master_addr={address}", f"--master_port={free_port()}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, prefix in enumerate(prefixes):
            torchrun = [*scripts.PYTHON, "-m", "torch.distributed.run", *where, f"--node_rank={rank}"]
            started_by_it = ["--no-python", *scripts.PYTHON, multi_host_program.__file__, str(folder)]
            command = [*prefix, *torchrun, f"--nproc_per_node={each}", *started_by_it]
            with (folder / f"node{rank}").open("wb") as file:
                started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
        yield started
    finally:
        for process in started:
            process.terminate()  # torchrun ends its workers
        for process in started:
            process.wait()


def ended_well(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    codes = [process.wait() for process in processes]
    assert codes == [0] * len(processes), "\n".join((folder / f"node{i}").read_text() for i in range(len(codes)))


def test_two_nodes_at_one_address(tmp_path: Path) -> None:
    with nodes(tmp_path, "127.0.0.1", each=2) as processes:
        ended_well(processes, tmp_path)
    assert multi_host_program.check_weights(tmp_path, 4) == [(4, 0, 0), (4, 1, 0), (4, 0, 1), (4, 1, 1)]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def namespaces() -> Iterator[list[tuple[str, str]]]:
    """Two connected network namespaces: names and addresses. Skips without the permission to create them."""
    names = [f"xla{os.getpid()}{end}" for end in "ab"]
    addresses = ["10.213.7.1", "10.213.7.2"]
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command to make network namespaces with")
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            ends = ["dev0", "netns", names[0], "type", "veth", "peer", "name", "dev0", "netns", names[1]]
            _ip("link", "add", *ends)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        for name, address in zip(names, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "dev0")
            _ip("-n", name, "link", "set", "dev0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, addresses, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_two_network_namespaces(tmp_path: Path) -> None:
    """The host name resolves to a loopback address, which is not reachable from the other namespace."""
    with namespaces() as both:
        prefixes = [("ip", "netns", "exec", name) for name, _ in both]
        with nodes(tmp_path, both[0][1], prefixes=prefixes) as processes:
            ended_well(processes, tmp_path)
    assert multi_host_program.check_weights(tmp_path, 2) == [(2, 0, 0), (2, 0, 1)]


#: Forks two processes with torchrun's environment but without a supervisor: each must end by itself.
ENDS = """
    import os, sys
    import torch, torch_xla
    import torch_xla.core.xla_model as xm

    def reduce():
        return xm.all_reduce("sum", torch.ones(2, device="xla")).tolist()

    def first_exits(rank):
        reduce()
        if rank == 0:
            raise SystemExit(3)
        reduce()  # cached: no comparison before the launch

    def last_exits(rank):
        reduce()
        if rank == 1:
            sys.exit(4)
        xm.all_gather(torch.ones(2, device="xla")).cpu()

    def last_returns(rank):
        assert xm.rendezvous("both", bytes([rank])) == [bytes([0]), bytes([1])]
        if rank == 0:
            xm.rendezvous("one")

    def main():
        mode, rank = os.environ["MODE"], int(os.environ["RANK"])
        globals()[mode](rank)

    children = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(rank)
            file = os.open(f"{os.environ['WHERE']}/{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1), os.dup2(file, 2)
            break
        children.append(pid)
    else:
        print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
        sys.exit()
    main()
"""


@pytest.mark.parametrize(
    ("mode", "codes", "rank", "message"),
    [
        ("first_exits", "[3, 1]", 1, "rank 0: no collective: the process has exited"),
        ("last_exits", "[1, 4]", 0, ""),
        ("last_returns", "[1, 0]", 0, "for replica 1, which has ended"),
    ],
)
def test_ranks_do_not_wait_for_an_exited_rank(tmp_path: Path, mode: str, codes: str, rank: int, message: str) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = run_script(ENDS, check=False, MODE=mode, WHERE=str(tmp_path), **where)
    said = [(tmp_path / str(i)).read_text() for i in range(2)]
    assert done.stdout == f"{codes}\n", said
    assert message in said[rank], said


def test_a_job_requires_a_fixed_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    settings.reload()
    try:
        with pytest.raises(ValueError, match="MASTER_PORT=0: the 2 processes"):
            replicas.process_count()
        monkeypatch.delenv("MASTER_PORT")
        settings.reload()
        assert replicas.process_count() == 1
    finally:
        monkeypatch.undo()
        settings.reload()


def test_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_address.local_address_for("127.0.0.1") == host_address.local_address_for("localhost") == "127.0.0.1"
    # The host name, if it resolves to loopback: the address of the default route.
    routes = {"rank0": "127.0.1.1", host_address._ELSEWHERE: "10.1.2.3"}
    monkeypatch.setattr(host_address, "_source_address_for", routes.__getitem__)
    assert host_address.local_address_for("rank0") == "10.1.2.3"
    # Other machines resolve that name to another address, if there are any.
    assert host_address.loopback_for("rank0", all_here=False) is None
    assert host_address.loopback_for("rank0", all_here=True) == "127.0.1.1"
