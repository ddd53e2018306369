"""Copy prefetched batches of loaders that may reuse the memory of the previous batch.

A prefetched batch waits for its transfer and for the consumer while the loader produces the next ones.
"""

from __future__ import annotations

import array
import copy
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from torch_xla._engine.data_loading import batch_structure

#: Types that a loader can overwrite in place. Containers and objects that hold some of these are copied as well.
_REFILLABLE = (torch.Tensor, np.ndarray, bytearray, array.array, deque)


def has_own_batches(loader: Iterable[Any]) -> bool:
    """Whether each batch of the loader has its own memory, which is not overwritten while the loader is read.

    A list or a tuple holds its batches. A DataLoader stacks samples to a new batch, or receives it from a worker
    process; with a user's ``collate_fn``, or without batches, it returns what the user's code returns.
    """
    if type(loader) in (list, tuple):
        return True
    if type(loader) is not DataLoader:
        return False
    return loader.num_workers > 0 or (loader.batch_sampler is not None and loader.collate_fn is default_collate)


def copy_batch(batch: Any) -> Any:
    """Return the batch with copies of its tensors, arrays and containers. Other objects without tensors are shared."""
    return batch_structure.map_leaves(batch, _copy_leaf, _REFILLABLE)


def _copy_leaf(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf)
