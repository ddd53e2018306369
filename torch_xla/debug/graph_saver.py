"""Writes the graph behind some tensors to a file, without running it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import pending_graph

_numbers = itertools.count()


def save_tensors_graph(save_dir: str | Path, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the graph that computes ``tensors`` to ``{save_dir}/{name}-{thread id}-{n}.{format}``.

    The format is that of SAVE_GRAPH_FMT: text, dot, hlo or stablehlo. ``n`` counts up in the process.
    Raises ValueError for tensors that are not on one xla device, OSError where the file cannot be written.
    """
    form = settings.SAVE_GRAPH_FMT
    content = pending_graph.render_pending("save_tensors_graph", tensors, form)
    file = Path(save_dir) / f"{name}-{threading.get_ident()}-{next(_numbers)}.{form}"
    file.write_text(content)
