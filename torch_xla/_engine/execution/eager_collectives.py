"""Context manager whose collectives run when it exits, independent of which ranks read their results."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.execution import executor
from torch_xla._engine.parallel import collectives


class EagerCollectives:
    """Encloses the recording of collectives; disables gradients.

    Collectives among a subset of the replicas (``partial``) run in a separate graph: the pending ops before them may
    need other replicas.
    """

    def __init__(self, partial: bool) -> None:
        self._partial = partial
        self._no_grad = torch.no_grad()
        self._device = recorder.bindings().current_device()

    def __enter__(self) -> None:
        if self._partial:
            executor.sync_device(self._device)
        self._no_grad.__enter__()

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        self._no_grad.__exit__(kind, error, at)
        if kind is None:
            executor.materialize(recorder.bindings().nodes_of(collectives.pending_results(self._device)), self._device)
            collectives.release_pending(self._device)
