"""The cost of checkpoints: bytes of each host, and the fraction of the time that a job loses with failures.

A save blocks the step while a host copies the shards that it writes to its memory; a thread then writes them
(``CheckpointManager.save_async``). A shard that several chips hold is written by the first of them, so with replicas
over the axis "data" only the hosts of the first replica write.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, refines J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.scaling.collectives import Sizes

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Storage:
    """Bandwidths in bytes per second, and failures. All are assumptions, but for the mean time between failures.

    Attributes:
      copy: from the chips of a host to its memory.
      disk: of a host's own disk.
      remote_host: of one host to remote storage.
      remote: of remote storage, for all hosts together.
      host_mtbf: mean time between failures that end a job, in hours of one host. Llama Team, "The Llama 3 Herd of
        Models", 2024, section 3.3.4: 419 unexpected interruptions of 16,384 GPUs (2,048 hosts) in 54 days.
      restart: seconds from a failure until the processes run again, without compilation and restoring.
    """

    copy: float = 20e9
    disk: float = 2e9
    remote_host: float = 1e9
    remote: float = 100e9
    host_mtbf: float = 54 * 24 * 2048 / 419
    restart: float = 300.0


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """The cost of checkpoints of a job; times in seconds.

    Attributes:
      hosts, writers: hosts of the job, and those that write.
      bytes: bytes of each writer.
      block: for which a save blocks the step.
      disk, remote: to write to the host's disk, and to remote storage.
      mtbf: mean time between failures of the job.
      least_interval: interval at which blocking takes a hundredth of the time; not less than that of a remote write.
      interval: Daly's optimum; not less than a remote write.
      loss: expected fraction of the time that is lost with ``interval``.
    """

    hosts: int
    writers: int
    bytes: float
    block: float
    disk: float
    remote: float
    mtbf: float
    least_interval: float
    interval: float
    loss: float


def optimum_interval(block: float, mtbf: float) -> float:
    """Return Daly's estimate of the interval between saves that minimizes the expected time (equation 37)."""
    if block >= 2 * mtbf:
        return mtbf
    ratio = block / (2 * mtbf)
    return math.sqrt(2 * block * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - block


def expected_loss(interval: float, block: float, delay: float, mtbf: float) -> float:
    """Return the expected fraction of the time that is not work that lasts.

    Failures are exponentially distributed with the mean ``mtbf``, also during a restart (Daly, equation 20).

    Args:
      interval: seconds of work between saves.
      block: seconds for which a save blocks.
      delay: seconds after a failure until work continues, and from the end of blocking until a checkpoint is complete.
    """
    work = interval * math.exp(-delay / mtbf) / math.expm1((interval + block) / mtbf)
    return 1 - work / mtbf


def simulate_loss(interval: float, block: float, delay: float, mtbf: float, failures: int, seed: int = 0) -> float:
    """Return the lost fraction of the time of a job with so many failures, at random times."""
    draw = random.Random(seed)
    elapsed = kept = 0.0
    for _ in range(failures):
        life = draw.expovariate(1 / mtbf)
        elapsed += life
        kept += interval * max(0, math.floor((life - delay) / (interval + block)))
    return 1 - kept / elapsed


def checkpoint_cost(state: float, sizes: Sizes, host_chips: int, storage: Storage) -> CheckpointCost:
    """Return the cost of checkpoints.

    Args:
      state: bytes of parameters and optimizer state on a chip.
      sizes: the mesh, data x fsdp x tensor; the state is replicated over the first axis.
    """
    chips, holders = math.prod(sizes), math.prod(sizes[1:])
    hosts, writers = max(1, chips // host_chips), max(1, holders // host_chips)
    size = state * holders / writers
    block, disk = size / storage.copy, size / storage.disk
    remote = _shared_seconds(size, writers, storage)
    mtbf = storage.host_mtbf * _HOUR / hosts
    interval = max(optimum_interval(block, mtbf), remote)
    read = _shared_seconds(size, hosts, storage)  # every replica reads its shards
    loss = expected_loss(interval, block, storage.restart + remote + read, mtbf)
    return CheckpointCost(hosts, writers, size, block, disk, remote, mtbf, max(100 * block, remote), interval, loss)


def _shared_seconds(size: float, hosts: int, storage: Storage) -> float:
    """Return the seconds in which so many hosts write or read ``size`` bytes each at remote storage."""
    return size / min(storage.remote_host, storage.remote / hosts)
