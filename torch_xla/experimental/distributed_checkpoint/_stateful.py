"""Objects with a state in a state dict: torch.distributed.checkpoint's protocol, and states that differ by process."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from torch_xla._engine.job import replicas


class RankLocalState:
    """A stateful object whose state differs between the processes of a job, in a checkpoint: a data loader.

    torch.distributed.checkpoint stores one copy of a value that is not a tensor, for all processes. This stores the
    state of every process, each as one pickled item, so that its structure may change from step to step.

        state = {"model": model, "optimizer": optimizer, "data": RankLocalState(loader)}
        manager.save_async(step, state)
        manager.restore_latest(state)

    The number of processes must be equal when the checkpoint is restored: the state of a loader cannot
    be divided again. Use torch_xla.distributed.elastic.GlobalBatchSampler for jobs whose size changes.

    Args:
      stateful: an object with ``state_dict`` and ``load_state_dict``, such as torchdata's StatefulDataLoader.

    Raises:
      TypeError: the object lacks a method.
    """

    def __init__(self, stateful: Any) -> None:
        if not isinstance(stateful, Stateful):
            raise TypeError(f"RankLocalState: {type(stateful).__name__} lacks state_dict() or load_state_dict()")
        self._stateful = stateful

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process, under a key that no other process has."""
        return {self._key(): (self._stateful.state_dict(),)}  # in a tuple: torch does not flatten tuples

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of this process.

        Args:
          state_dict: as ``state_dict`` returns it.
        """
        self._stateful.load_state_dict(state_dict[self._key()][0])

    def _key(self) -> str:
        return f"process_{replicas.process_index()}_of_{replicas.process_count()}"


def state_dicts(state_dict: Any) -> Any:
    """Return a shallow copy with the states of stateful objects in place of the objects."""
    if not isinstance(state_dict, Mapping):
        return state_dict
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}


def load_state_dicts(state_dict: Any, loaded: Any) -> None:
    """Write what was loaded into the result of ``state_dicts`` back into the state dict and its stateful objects."""
    if not isinstance(state_dict, MutableMapping):
        return
    for key, value in loaded.items():
        target = state_dict.get(key)
        if isinstance(target, Stateful):
            target.load_state_dict(value)
        else:
            state_dict[key] = value
