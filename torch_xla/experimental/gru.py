"""``torch.nn.GRU`` under the name that PyTorch/XLA gives to its scan-based GRU."""

from __future__ import annotations

from torch import nn

__all__ = ["GRU"]


class GRU(nn.GRU):
    """``torch.nn.GRU``: on xla it compiles into one loop per layer and direction, as nn.LSTM and nn.RNN do.

    Args:
      input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: see torch.nn.GRU.
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
