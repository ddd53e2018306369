"""A GRU that compiles to a loop, independent of the sequence length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_xla._engine.capture import scan
from torch_xla._engine.capture.joint_graph import save_all

__all__ = ["GRU"]


class GRU(nn.GRU):
    """``torch.nn.GRU`` with one ``lax.scan`` per layer and direction on xla; same arguments, parameters and values.

    nn.GRU itself is unrolled on xla, one step per element of the sequence, which takes long to compile.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def forward(self, input: Any, hx: Tensor | None = None) -> Any:
        """Return ``(output, last hidden state)`` as nn.GRU does. Raises TypeError for a packed sequence on xla."""
        if not isinstance(input, Tensor):
            if input.data.device.type == "xla":
                raise TypeError("GRU: packed sequences are not supported on xla; pad them (pad_packed_sequence)")
            return super().forward(input, hx)
        if input.device.type != "xla":
            return super().forward(input, hx)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(0 if self.batch_first else 1)
        x = x.transpose(0, 1) if self.batch_first else x
        directions = 2 if self.bidirectional else 1
        shape = (self.num_layers * directions, x.shape[1], self.hidden_size)
        if hx is None:
            hx = torch.zeros(shape, dtype=x.dtype, device=x.device)
        elif not batched:
            hx = hx.unsqueeze(1)
        if tuple(hx.shape) != shape:
            raise RuntimeError(f"Expected hidden size {list(shape)}, got {list(hx.shape)}")
        output, last = self._layers(x, hx, directions)
        output = output.transpose(0, 1) if self.batch_first else output
        return (output, last) if batched else (output.squeeze(0 if self.batch_first else 1), last.squeeze(1))

    def _layers(self, x: Tensor, hx: Tensor, directions: int) -> tuple[Tensor, Tensor]:
        last = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                output, final = self._direction(
                    x.flip(0) if direction else x, hx[layer * directions + direction], suffix
                )
                outputs.append(output.flip(0) if direction else output)
                last.append(final)
            x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, torch.stack(last)

    def _direction(self, x: Tensor, h: Tensor, suffix: str) -> tuple[Tensor, Tensor]:
        to_gates, again = (getattr(self, name + suffix) for name in ("weight_ih_", "weight_hh_"))
        bias, bias_again = (getattr(self, name + suffix, None) for name in ("bias_ih_", "bias_hh_"))

        def step(h: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
            r, z, n = gates.chunk(3, -1)
            r_h, z_h, n_h = F.linear(h, again, bias_again).chunk(3, -1)
            z = torch.sigmoid(z + z_h)
            h = torch.tanh(n + torch.sigmoid(r + r_h) * n_h) * (1 - z) + z * h
            return h, h

        # The input projection does not depend on the previous step: one matmul for all steps.
        final, output = scan.scan(step, h, F.linear(x, to_gates, bias), save_all, what="GRU")
        return output, final
