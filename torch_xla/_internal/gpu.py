"""Start of a GPU job under upstream's internal names. Processes connect at their first use of a device."""

from __future__ import annotations

from torch_xla import runtime


def num_local_processes() -> int:
    """Return the number of processes of this job on this host."""
    return runtime.local_process_count()


def initialize_distributed_runtime(global_world_size: int) -> None:
    """Check the number of processes.

    Raises:
      RuntimeError: the job has another number of processes.
    """
    if runtime.world_size() != global_world_size:
        raise RuntimeError(
            f"initialize_distributed_runtime: the job has {runtime.world_size()} processes, not {global_world_size}; "
            "start them with torchrun or torch_xla.launch"
        )


def shutdown_distributed_runtime() -> None:
    """Do nothing: processes disconnect when they end."""
