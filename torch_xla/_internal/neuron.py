"""Queries of AWS Neuron under upstream's internal names. Such devices need a PJRT plugin for jax."""

from __future__ import annotations

_PLUGIN = (
    "register the PJRT plugin of the device with torch_xla.experimental.plugins, and start processes with torchrun"
)


def num_local_processes() -> int:
    """Raise NotImplementedError: there is no code for Neuron devices."""
    raise NotImplementedError(f"num_local_processes: torch_xla has no code for Neuron devices; {_PLUGIN}")


def initialize_env(local_rank: int) -> None:
    """Raise NotImplementedError: there is no code for Neuron devices."""
    raise NotImplementedError(f"initialize_env: torch_xla has no code for Neuron devices; {_PLUGIN}")
