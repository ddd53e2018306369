"""The models that benchmarks and parity tests train, in plain torch, each with a batch maker for its inputs.

Every class takes its sizes as arguments, so that tests can make it small.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Sequential):
    """``depth`` hidden layers of linear + ReLU, and a linear head."""

    def __init__(self, depth: int = 50, width: int = 64, classes: int = 10) -> None:
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(width, classes))


class LeNet(nn.Module):
    """Two convolutions and two linear layers for 1 x 28 x 28 images."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.linear1, self.linear2 = nn.Linear(320, 50), nn.Linear(50, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.linear2(F.relu(self.linear1(x.flatten(1))))


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class _Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is a 1 x 1 convolution where shapes differ."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, width: int, stride: int) -> _Residual:
    body = nn.Sequential(_conv_norm(inputs, width, 3, stride), nn.ReLU(), _conv_norm(width, width, 3))
    return _Residual(body, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> _Residual:
    outputs = 4 * width
    body = nn.Sequential(
        _conv_norm(inputs, width, 1), nn.ReLU(), _conv_norm(width, width, 3, stride), nn.ReLU(),
        _conv_norm(width, outputs, 1),
    )  # fmt: skip
    return _Residual(body, inputs, outputs, stride)


class ResNet(nn.Module):
    """ResNet for 3-channel images: 18 layers with basic blocks, 50 with bottlenecks. ``width`` is 64 in the paper.

    ``blocks`` says how many each of the four stages has, where it is not to be what the paper has.
    """

    BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}  # noqa: RUF012

    def __init__(
        self, layers: int = 18, width: int = 64, classes: int = 10, blocks: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        block, grows = (_basic, 1) if layers == 18 else (_bottleneck, 4)
        self.stem = nn.Sequential(_conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages, inputs = [], width
        for stage, count in enumerate(blocks or self.BLOCKS[layers]):
            for i in range(count):
                stages.append(block(inputs, width << stage, 2 if stage and not i else 1))
                inputs = grows * (width << stage)
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.stages(self.stem(images)), 1).flatten(1))


class _Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, is_causal: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout, self.is_causal = heads, dropout, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=-1))
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class GPT(nn.Module):
    """Token and position embeddings, ``layers`` blocks, and a head over the vocabulary."""

    def __init__(
        self,
        layers: int = 6,
        width: int = 128,
        heads: int = 4,
        vocabulary: int = 256,
        length: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(position))))


class ViT(nn.Module):
    """Patches of an image through ``layers`` blocks; the mean of what comes out is classified."""

    def __init__(
        self, layers: int = 6, width: int = 128, heads: int = 4, patch: int = 4, size: int = 32, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(_Block(width, heads, is_causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class _RMSNorm(nn.Module):
    """Written out, as decoders do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Decoder(nn.Module):
    """A layer of a Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, heads // 2, width // heads
        self.before, self.between = _RMSNorm(width), _RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, self.shared * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, heads, self.size).transpose(1, 2)
            for layer, heads in ((self.q, self.heads), (self.k, self.shared), (self.v, self.shared))
        )
        halves = torch.arange(0, self.size, 2, device=x.device) / self.size
        angles = torch.outer(torch.arange(length, device=x.device), 10000.0**-halves).repeat(1, 2)
        q, k = (_apply_rotary(t, angles.cos(), angles.sin()) for t in (q, k))
        k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before(x))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LSTMClassifier(nn.Module):
    """An LSTM over a sequence of tokens, classified by its last output."""

    def __init__(self, vocabulary: int = 64, width: int = 32, layers: int = 2, classes: int = 5) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(tokens))[0][:, -1])


def vectors(batch: int = 64, width: int = 64, classes: int = 10) -> tuple[Tensor, Tensor]:
    """A batch for :class:`MLP`, on the CPU: inputs and labels."""
    return torch.randn(batch, width), torch.randint(classes, (batch,))


def images(batch: int, channels: int, size: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """A batch for :class:`LeNet` (1 channel, size 28), :class:`ResNet` or :class:`ViT` (3 channels), on the CPU."""
    return torch.randn(batch, channels, size, size), torch.randint(classes, (batch,))


def text(batch: int = 8, length: int = 64, vocabulary: int = 256) -> tuple[Tensor, Tensor]:
    """A batch for :class:`GPT`, on the CPU: tokens, and the token that follows each."""
    tokens = torch.randint(vocabulary, (batch, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def sentences(batch: int = 8, length: int = 12, vocabulary: int = 64, classes: int = 5) -> tuple[Tensor, Tensor]:
    """A batch for :class:`LSTMClassifier`, on the CPU: tokens and labels."""
    return torch.randint(vocabulary, (batch, length)), torch.randint(classes, (batch,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions, for every model here."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
