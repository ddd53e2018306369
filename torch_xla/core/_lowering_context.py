"""``torch_xla._XLAC.lowering``: the HLO of a pending graph, and the tensor of each program parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.execution import graph_dump, pending_graph


class LoweringContext:
    """Lower the graph of some tensors without running it: ``context.build([loss]); context.hlo_text()``.

    The first two parameters of the program are the scalars of the graph, as float64[n] and int64[m]; the others are
    tensors.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._parameters: dict[int, torch.Tensor] = {}
        self._hlo: Any = None

    def build(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lower the pending graph of ``tensors``. Raises ValueError if they are not on one xla device."""
        spec, device, arguments = pending_graph.pending_program("LoweringContext.build", tensors)
        self._hlo = graph_dump.lower_for_dump(spec, device, arguments).compiler_ir("hlo")
        floats, ints, *arrays = arguments
        self._parameters = {0: torch.from_numpy(floats.copy()), 1: torch.from_numpy(ints.copy())}
        make = recorder.bindings().make_tensor
        for number, (array, (_, dtype)) in enumerate(zip(arrays, spec.leaves, strict=True), 2):
            self._parameters[number] = make(array, dtypes.TO_CODE[dtype], device)

    def hlo(self) -> bytes:
        """Return the program as a serialized HloModuleProto. Raises RuntimeError before build()."""
        found: bytes = self._built().as_serialized_hlo_module_proto()
        return found

    def hlo_text(self) -> str:
        """Return the program as HLO text. Raises RuntimeError before build()."""
        return str(self._built().as_hlo_text())

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Return the tensor of each program parameter, by number. Raises RuntimeError before build()."""
        self._built()
        return dict(self._parameters)

    def tensor_parameter_id(self, tensor: torch.Tensor) -> int:
        """Return the number of the parameter that holds the value of an xla tensor; -1 if no parameter does."""
        self._built()
        (wanted,) = recorder.bindings().nodes_of([tensor])
        for number, parameter in self._parameters.items():
            if number >= 2 and not wanted.pending:
                (node,) = recorder.bindings().nodes_of([parameter])
                if node.buffer is wanted.buffer:
                    return number
        return -1

    def _built(self) -> Any:
        if self._hlo is None:
            raise RuntimeError("LoweringContext: no graph has been lowered; call build(tensors) first")
        return self._hlo
