"""Decoding one token at a time with a static cache: a captured step, recorded steps, a loop on the device, and jax.

    python -m benchmarks.decoding [--layers 12] [--width 256]

Milliseconds per token, medians of rounds of 64 tokens that are taken in turns; each token is fed back on the device.
The tokens of all contestants are compared: they have the weights of one model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.report import setting, table, time_in_turns

LENGTH, ROUNDS = 64, 5


class Decoder(nn.Module):
    """A GPT that decodes one token for each sequence, with a cache of keys and values for each layer."""

    def __init__(self, layers: int = 12, width: int = 256, heads: int = 4, vocabulary: int = 512) -> None:
        super().__init__()
        self.layers, self.heads, self.size = layers, heads, width // heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        norms = [nn.LayerNorm(width) for _ in range(2 * layers + 1)]
        self.norms = nn.ModuleList(norms)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def make_cache(self, batch: int, device: str) -> list[Tensor]:
        """Return a key and a value tensor for each layer."""
        shape = (batch, self.heads, LENGTH, self.size)
        return [torch.zeros(shape, device=device) for _ in range(2 * self.layers)]

    def forward(self, token: Tensor, position: Tensor, cache: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the next token of each sequence and the new cache. ``position``: of ``token``, of one element."""
        x = self.tokens(token) + self.positions(position)
        mask = torch.arange(LENGTH, device=x.device) <= position
        new = []
        for i in range(self.layers):
            parts = self.qkv[i](self.norms[2 * i](x)).view(-1, 3, self.heads, 1, self.size).unbind(1)
            q, (k, v) = parts[0], (c.index_copy(2, position, p) for c, p in zip(cache[2 * i : 2 * i + 2], parts[1:]))  # noqa: B905
            scores = (q @ k.transpose(2, 3)) * self.size**-0.5
            attended = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
            x = x + self.out[i](attended.reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
            new += [k, v]
        return self.head(self.norms[-1](x)).argmax(-1), new


class Stepwise:
    """Decodes with one call of the model per token; with ``replay`` the call is captured."""

    def __init__(self, model: Decoder, replay: bool) -> None:
        self.cache, self.position = model.make_cache(1, "xla"), torch.zeros(1, dtype=torch.int64, device="xla")

        @torch.no_grad()
        def step(token: Tensor) -> Tensor:
            found, new = model(token, self.position, self.cache)
            for cache, values in zip(self.cache, new, strict=True):
                cache.copy_(values)
            self.position.add_(1)
            return found

        import torch_xla

        self.step = torch_xla.compile(step, replay=replay)

    def decode(self, count: int = LENGTH) -> list[int]:
        """Return the tokens that follow token 1."""
        self.position.zero_()
        token, found = torch.ones(1, dtype=torch.int64, device="xla"), []
        for _ in range(count):
            token = self.step(token)
            found.append(token)
        return [int(token) for token in torch.cat(found).tolist()]


class OnDevice:
    """Decodes in a while_loop, which ends after ``LENGTH`` tokens or when the token ``end`` is found."""

    def __init__(self, model: Decoder, end: int = -1) -> None:
        self.model, self.end = model, end

    @torch.no_grad()
    def decode(self) -> list[int]:
        """Return the tokens that follow token 1."""
        from torch_xla.experimental.fori_loop import while_loop

        def goes_on(position: Tensor, token: Tensor, tokens: Tensor, *cache: Tensor) -> Tensor:
            return (position[0] < LENGTH) & (token[0] != self.end)

        def body(position: Tensor, token: Tensor, tokens: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
            found, new = self.model(token, position, list(cache))
            return position + 1, found, tokens.index_copy(0, position, found), *new

        start = torch.zeros(1, dtype=torch.int64, device="xla"), torch.ones(1, dtype=torch.int64, device="xla")
        tokens = torch.zeros(LENGTH, dtype=torch.int64, device="xla")
        position, _, tokens, *_ = while_loop(goes_on, body, (*start, tokens, *self.model.make_cache(1, "xla")))
        return [int(token) for token in tokens.tolist()[: int(position.item())]]


def _linear(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["weight"].T + layer.get("bias", 0.0)


def _norm(layer: Any, x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * layer["weight"] + layer["bias"]


class Jax:
    """The same, written in jax: one jitted step, whose cache is donated."""

    def __init__(self, model: Decoder) -> None:
        values = {name: jnp.asarray(value.detach().cpu().numpy()) for name, value in model.state_dict().items()}
        self.layers, self.heads, self.size = model.layers, model.heads, model.size
        self.parameters: dict[str, dict[str, jax.Array]] = {}
        for name, value in values.items():
            layer, _, kind = name.rpartition(".")
            self.parameters.setdefault(layer, {})[kind] = value
        self.step = jax.jit(self._step, donate_argnums=(1, 3))

    def _step(self, p: Any, position: jax.Array, token: jax.Array, cache: Any) -> Any:
        x = p["tokens"]["weight"][token] + p["positions"]["weight"][position]
        mask, new = jnp.arange(LENGTH) <= position, []
        for i in range(self.layers):
            parts = _linear(p[f"qkv.{i}"], _norm(p[f"norms.{2 * i}"], x)).reshape(-1, 3, self.heads, 1, self.size)
            k, v = (jax.lax.dynamic_update_slice_in_dim(cache[2 * i + j], parts[:, 1 + j], position, 2) for j in (0, 1))
            scores = jnp.where(mask, parts[:, 0] @ k.swapaxes(2, 3) * self.size**-0.5, -jnp.inf)
            x = x + _linear(p[f"out.{i}"], (jax.nn.softmax(scores) @ v).reshape(x.shape))
            inner = jax.nn.gelu(_linear(p[f"up.{i}"], _norm(p[f"norms.{2 * i + 1}"], x)), approximate=False)
            x = x + _linear(p[f"down.{i}"], inner)
            new += [k, v]
        last = _norm(p[f"norms.{2 * self.layers}"], x)
        return position + 1, _linear(p["head"], last).argmax(-1), new

    def decode(self) -> list[int]:
        """Return the tokens that follow token 1."""
        shape = (1, self.heads, LENGTH, self.size)
        cache = [jnp.zeros(shape) for _ in range(2 * self.layers)]
        position, token, found = jnp.zeros((), jnp.int32), jnp.ones(1, jnp.int32), []
        for _ in range(LENGTH):
            position, token, cache = self.step(self.parameters, position, token, cache)
            found.append(token)
        return [int(token) for token in np.concatenate(found)]


def measure(layers: int, width: int) -> dict[str, float]:
    """Return milliseconds per token of each contestant. Raises RuntimeError if their tokens differ."""
    import torch_xla  # noqa: F401

    torch.manual_seed(0)
    model = Decoder(layers, width).to("xla").eval()
    contestants: dict[str, Callable[[], list[int]]] = {
        "captured": Stepwise(model, True).decode,
        "recorded": Stepwise(model, False).decode,
        "while_loop": OnDevice(model).decode,
        "jax": Jax(model).decode,
    }
    tokens = {name: [decode() for _ in range(3)][-1] for name, decode in contestants.items()}
    if any(found != tokens["jax"] for found in tokens.values()):
        raise RuntimeError(f"the contestants decode other tokens: {tokens}")
    return time_in_turns(contestants, ROUNDS, LENGTH)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    found = measure(options.layers, options.width)
    rows = [[name, f"{value:.2f}", f"{value / found['jax']:.2f}"] for name, value in found.items()]
    print(f"{setting()}\n\n{table(['a token', 'ms', 'to jax'], rows)}")


if __name__ == "__main__":
    main()
