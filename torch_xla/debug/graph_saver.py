"""Write the pending graph of tensors to a file, without running it."""

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
    """Write the graph that computes ``tensors`` to ``{save_dir}/{name}-{thread id}-{n}.{format}``.

    SAVE_GRAPH_FMT selects the format: text, dot, hlo or stablehlo. ``n`` counts the files of this process.

    Args:
      save_dir: an existing folder.
      name: prefix of the file's name.
      tensors: xla tensors.

    Raises:
      ValueError: the tensors are not on one xla device.
      OSError: the file cannot be written.
    """
    graph_format = settings.SAVE_GRAPH_FMT
    content = pending_graph.render_pending("save_tensors_graph", tensors, graph_format)
    file = Path(save_dir) / f"{name}-{threading.get_ident()}-{next(_numbers)}.{graph_format}"
    file.write_text(content)
