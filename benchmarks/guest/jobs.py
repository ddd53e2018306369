"""What :mod:`benchmarks.guest` trains: a model, batches on the CPU, a loss, an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.guest import models
from benchmarks.models import GPT, LSTMClassifier, images, loss, sentences, text, vectors

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class GuestJob:
    """A model to train.

    Args:
        name: its name in the tables.
        model: makes it, on the CPU.
        batch: makes a batch for its loss, on the CPU. Each step has another one.
        loss: from the model and a batch on the model's device to a scalar.
        optimizer: makes the optimizer.
        steps: the least number of steps of one measurement; few for slow models.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    steps: int = 20


def _classify(model: nn.Module, batch: Batch) -> Tensor:
    *inputs, targets = batch
    return loss(model(*inputs), targets)


def _padded_sentences(batch: int = 16, length: int = 64, vocabulary: int = 2000) -> Batch:
    tokens = torch.randint(1, vocabulary, (batch, length))
    lengths = torch.randint(length // 4, length + 1, (batch, 1))
    return tokens * (torch.arange(length) < lengths), torch.randint(4, (batch,))


def _rollout(batch: int = 64) -> Batch:
    return torch.randn(batch, 8), torch.randn(batch)


def _actor_critic(model: nn.Module, batch: Batch) -> Tensor:
    observations, returns = batch
    logits, value = model(observations)
    policy = torch.distributions.Categorical(logits=logits, validate_args=False)
    advantage = returns - value
    log_probability = policy.log_prob(policy.sample())
    return (-log_probability * advantage.detach()).mean() + advantage.pow(2).mean() - 0.01 * policy.entropy().mean()


def _segments(batch: int = 4, size: int = 64) -> Batch:
    return torch.randn(batch, 3, size, size), torch.randint(2, (batch, size, size))


def _segment(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _clicks(batch: int = 256, tables: int = 8, rows: int = 10000) -> Batch:
    return torch.randn(batch, 13), torch.randint(rows, (tables, batch, 3)), torch.randint(2, (batch,)).float()


def _click(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])


def _pixels(batch: int = 128) -> Batch:
    return (torch.rand(batch, 784),)


def _reconstruct(model: nn.Module, batch: Batch) -> Tensor:
    output, mean, log_variance = model(batch[0])
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
    return F.binary_cross_entropy(output, batch[0], reduction="sum") + divergence


def _graph(nodes: int = 2000, edges: int = 10000, width: int = 64) -> Batch:
    return torch.randn(nodes, width), torch.randint(nodes, (2, edges)), torch.randint(7, (nodes,))


def _translations(batch: int = 8, length: int = 32, vocabulary: int = 1000) -> Batch:
    source, target = (torch.randint(vocabulary, (batch, length)) for _ in range(2))
    return source, target, torch.randint(vocabulary, (batch, length))


_text = functools.partial(text, batch=4, length=64, vocabulary=512)
_sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
_gpt2 = functools.partial(GPT, layers=12, width=768, heads=12, vocabulary=50257, length=64)

JOBS = (
    GuestJob("BERT-4L, padding masks", models.Bert, _padded_sentences, _classify),
    GuestJob("policy net, 64 wide", models.Policy, _rollout, _actor_critic, torch.optim.Adam),
    GuestJob("MobileNet-like", models.MobileNet, functools.partial(images, 8, 3, 64), _classify, _sgd),
    GuestJob("ConvNeXt-like", models.ConvNext, functools.partial(images, 8, 3, 64), _classify),
    GuestJob("U-Net", models.UNet, _segments, _segment, steps=10),
    GuestJob("LSTM, 2 layers of 128",
             functools.partial(LSTMClassifier, vocabulary=1000, width=128),
             functools.partial(sentences, batch=32, length=64, vocabulary=1000), _classify, steps=10),
    GuestJob("decoder-4L of 128", functools.partial(models.Llama, 4, 128, 4, 512), _text, _classify),
    GuestJob("decoder-6L of 256", functools.partial(models.Llama, 6, 256, 8, 512), _text, _classify),
    GuestJob("GPT-2 124M", _gpt2, functools.partial(text, batch=2, length=64, vocabulary=50257), _classify, steps=3),
    GuestJob("translator", models.Translator, _translations, _classify),
    GuestJob("DLRM", models.Dlrm, _clicks, _click),
    GuestJob("VAE", models.Vae, _pixels, _reconstruct, torch.optim.Adam),
    GuestJob("GNN", models.Gnn, _graph, _classify, torch.optim.Adam),
    GuestJob("MLP, 3 layers of 256",
             lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
             vectors, _classify),
)  # fmt: skip
