"""Make ``nn.TransformerEncoder`` in evaluation mode return zeros at padded positions, as on other devices.

On other devices it packs the rows of a batch into a nested tensor without the padding, and unpacks them with zeros. xla
does not support nested tensors: the layers compute the padded positions, and zeros are inserted afterwards.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn


def _would_use_nested_tensor(
    encoder: nn.TransformerEncoder, src: Tensor, mask: Tensor | None, padding: Tensor | None
) -> bool:
    """Whether torch would use a nested tensor for ``src`` on other devices, assuming padding at the end of each row."""
    first = encoder.layers[0]
    return (
        src.device.type == "xla"
        and padding is not None
        and mask is None
        and src.dim() == 3
        and not first.training
        and getattr(encoder, "use_nested_tensor", False)
        and torch.backends.mha.get_fastpath_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in itertools.chain([src], first.parameters())))
    )


def _forward(encoder: nn.TransformerEncoder, src: Tensor, padding: Tensor) -> Tensor:
    output = src
    for layer in encoder.layers:
        output = layer(output, src_key_padding_mask=padding)
    empty = padding if padding.dtype == torch.bool else padding != 0
    if getattr(encoder, "mask_check", True):  # rows with padding in other positions are not packed
        empty = empty & (empty[:, 1:] >= empty[:, :-1]).all()
    output = output.masked_fill(empty.unsqueeze(-1), 0)
    return output if encoder.norm is None else encoder.norm(output)


def patch_transformer_encoder() -> None:
    """Wrap the forward of TransformerEncoder. Called once, on import."""
    forward = nn.TransformerEncoder.forward

    @functools.wraps(forward)
    def padded(
        self: nn.TransformerEncoder,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Any:
        if src_key_padding_mask is None or src.device.type != "xla":
            return forward(self, src, mask, src_key_padding_mask, is_causal)
        if _would_use_nested_tensor(self, src, mask, src_key_padding_mask):
            return _forward(self, src, src_key_padding_mask)
        # torch reads the padding's values to decide whether to pack.
        packs, self.use_nested_tensor = getattr(self, "use_nested_tensor", False), False
        try:
            return forward(self, src, mask, src_key_padding_mask, is_causal)
        finally:
            self.use_nested_tensor = packs

    nn.TransformerEncoder.forward = padded  # type: ignore[method-assign]
