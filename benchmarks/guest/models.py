"""Models as their users write them, in plain torch. Of these, only ConvNeXt and the LSTM had kernels tuned on them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Decoder


class Bert(nn.Module):
    """An encoder over padded sentences. ``tokens``: int64[batch, length], 0 is padding."""

    def __init__(self, layers: int = 4, width: int = 192, heads: int = 6, vocabulary: int = 2000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.encoder(self.tokens(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.head((x * kept).sum(1) / kept.sum(1))


class Policy(nn.Module):
    """Action logits and a value for each observation of a small control task."""

    def __init__(self, observation: int = 8, width: int = 64, actions: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actions, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(observations)
        return self.actions(x), self.value(x).squeeze(-1)


class _InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection, with a shortcut where shapes are equal."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.has_shortcut = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.has_shortcut else self.body(x)


class MobileNet(nn.Sequential):
    """Inverted residuals for 3-channel images."""

    def __init__(self, classes: int = 10) -> None:
        sizes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        blocks = [_InvertedResidual(*size) for size in sizes]
        super().__init__(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, classes))


class _ConvGroup(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())


class UNet(nn.Module):
    """Three resolutions with GroupNorm, bilinear upsampling and skip connections."""

    def __init__(self, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_ConvGroup(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(_ConvGroup(a + b, a) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for layer, skip in zip(self.up, skips[-2::-1], strict=True):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = layer(torch.cat((x, skip), 1))
        return self.head(x)


class Llama(nn.Module):
    """Embedding, ``layers`` decoder layers with rotary positions, and a tied head."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Decoder(width, heads) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.layers(self.tokens(tokens)), self.tokens.weight)


class Dlrm(nn.Module):
    """Recommendation: embeddings of categories and a dense part, their pairwise products, an MLP."""

    def __init__(self, tables: int = 8, rows: int = 10000, width: int = 32, dense: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(ids) for table, ids in zip(self.tables, categories, strict=True))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        row, column = torch.tril_indices(features.shape[1], features.shape[1], -1, device=x.device)
        return self.top(torch.cat((x, products[:, row, column]), 1)).squeeze(1)


class Vae(nn.Module):
    """The variational autoencoder of torch's examples, 784 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(sample), mean, log_variance


class Gnn(nn.Module):
    """Three rounds of mean message passing. ``edges``: int64[2, edges]."""

    def __init__(self, width: int = 64, classes: int = 7) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(x.shape[0], device=x.device).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        for layer in self.layers:
            messages = torch.zeros_like(x).index_add(0, target, x[source]) / degree.clamp(min=1).unsqueeze(1)
            x = F.relu(layer(torch.cat((x, messages), 1)))
        return self.head(x)


class ConvNext(nn.Module):
    """Depthwise 7 x 7 convolutions, LayerNorm over channels, GELU."""

    def __init__(self, layers: int = 4, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.depthwise = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for depthwise, norm, mlp in zip(self.depthwise, self.norms, self.mlps, strict=True):
            x = x + mlp(norm(depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class Translator(nn.Module):
    """``nn.Transformer`` from tokens to tokens, with a causal mask."""

    def __init__(self, width: int = 128, layers: int = 2, vocabulary: int = 1000) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.transformer = nn.Transformer(width, 4, layers, layers, 4 * width, 0.1, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.transformer(self.tokens(source), self.tokens(target), tgt_mask=mask))
