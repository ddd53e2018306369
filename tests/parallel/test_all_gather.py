"""The all-gather of bytes behind a rendezvous: calls of the key-value store, large values, a last process that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.test_multi_host import free_port
from tests.support.helpers import run_script
from torch_xla._engine.job import key_value_exchange

PROCESSES = 3

#: Forks the processes of a job; ``gather`` runs in each, with a store that counts its calls.
JOB = """
import collections, os, sys, time, traceback
from pathlib import Path
import torch_xla
from torch_xla._engine.job import coordination, key_value_exchange

class CountedStore:
    def __init__(self, store):
        self.store, self.calls, self.dropped = store, collections.Counter(), None

    def __getattr__(self, name):
        def call(key, *args, **options):
            self.calls[name] += 1
            if name == "key_value_set_bytes" and self.dropped and key.endswith(self.dropped):
                return None
            return getattr(self.store, name)(key, *args, **options)
        return call

def gather(rank):
{body}

def run(rank):
    global store
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    coordination.initialize()
    store = CountedStore(coordination.coordination_client())
    coordination.coordination_client = lambda: store
    gather(rank)
    Path({folder!r}, str(rank)).touch()
    while len(os.listdir({folder!r})) < {processes}:  # rank 0 hosts the store
        time.sleep(0.02)

children = []
for rank in range({processes}):
    children.append(os.fork())
    if children[-1] == 0:
        try:
            run(rank)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
print(sum(os.waitpid(child, 0)[1] for child in children))
"""


def run_job(body: str, folder: Path) -> None:
    code = JOB.format(body=body, folder=str(folder), processes=PROCESSES)
    count = str(PROCESSES)
    done = run_script(
        code, check=False, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=count,
        LOCAL_WORLD_SIZE=count, PJRT_DEVICE="CPU",
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["0"], done.stderr


def test_calls_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """A value, the count, the wait and one read; the last process announces; values of the round before are deleted."""
    body = """
    for round in range(3):
        values = key_value_exchange.all_gather_bytes("test", bytes([rank, round]), [0, 1, 2])
        assert values == [bytes([other, round]) for other in range(3)], values
    calls = store.calls
    assert calls["key_value_increment"] == calls["key_value_dir_get_bytes"] == 3, calls
    assert 3 <= calls["key_value_set_bytes"] <= 6, calls
    assert calls["key_value_delete"] == (6 if rank == 0 else 2), calls
    """
    run_job(body, tmp_path)


def test_no_keys_of_earlier_rounds_are_left(tmp_path: Path) -> None:
    body = """
    for round in range(3):
        key_value_exchange.all_gather_bytes("test", b"", [0, 1, 2])
    key_value_exchange.all_gather_bytes("end", b"", [0, 1, 2])
    keys = [key for key, _ in store.store.key_value_dir_get_bytes("torch_xla/test/")]
    assert len(keys) == 5 and all("/2/" in key for key in keys), keys
    """
    run_job(body, tmp_path)


def test_large_values(tmp_path: Path) -> None:
    """More than gRPC's default limit of 4 MB for a message."""
    body = """
    values = key_value_exchange.all_gather_bytes("test", bytes([rank]) * 5_000_000, [0, 1, 2])
    assert values == [bytes([other]) * 5_000_000 for other in range(3)]
    """
    run_job(body, tmp_path)


def test_the_last_process_ends_before_it_announces(tmp_path: Path) -> None:
    """The others find all values at their next poll."""
    body = """
    store.dropped = "/complete"
    assert key_value_exchange.all_gather_bytes("test", bytes([rank]), [0, 1, 2]) == [b"\\0", b"\\1", b"\\2"]
    """
    run_job(body, tmp_path)


@pytest.mark.parametrize("count", [2, 40])
def test_names_of_groups_are_short_and_distinct(count: int) -> None:
    groups = [range(count), range(1, count + 1), range(0, 2 * count, 2), [*range(count - 1), count + 5]]
    names = {key_value_exchange._group_key(group) for group in groups}
    assert len(names) == len(groups) and all(len(name) <= 64 for name in names)
