"""Checkpoints of sharded models in torch.distributed.checkpoint's format; each process writes its shards."""

from torch_xla.experimental.distributed_checkpoint._checksummed_storage import CheckpointError
from torch_xla.experimental.distributed_checkpoint._stateful import RankLocalState
from torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.distributed_checkpoint.safetensors import load_safetensors
from torch_xla.experimental.distributed_checkpoint.util import prime_optimizer

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "RankLocalState",
    "SPMDLoadPlanner",
    "SPMDSavePlanner",
    "load_safetensors",
    "prime_optimizer",
]
