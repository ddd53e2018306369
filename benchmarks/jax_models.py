"""The models with their optimizers as one writes them in jax, to compare a training step with.

A trainer is ``(state, step)``: ``step(state, inputs, targets)`` gives the new state and the loss, is compiled as one
program, and reuses the buffers of the old state. Sizes are those of benchmarks/models.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

State = Any  # a pytree: parameters and what the optimizer keeps
Step = Callable[[State, Array, Array], tuple[State, Array]]
KEY = 0


def _cross_entropy(logits: Array, targets: Array) -> Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -picked.mean()


def _uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    return jax.random.uniform(key, shape, jnp.float32, -(fan_in**-0.5), fan_in**-0.5)


def _sgd(state: State, grads: Any, lr: float, momentum: float) -> State:
    parameters, momenta = state
    momenta = jax.tree.map(lambda m, g: momentum * m + g, momenta, grads)
    return jax.tree.map(lambda p, m: p - lr * m, parameters, momenta), momenta


def mlp(depth: int = 50, width: int = 64, classes: int = 10, lr: float = 1e-3) -> tuple[State, Step]:
    """MLP with AdamW, at torch's defaults."""
    keys = jax.random.split(jax.random.key(KEY), depth + 1)
    sizes = [width] * (depth + 1) + [classes]
    parameters = [
        (_uniform(key, (inputs, outputs), inputs), jnp.zeros(outputs))
        for key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]

    def model(p: Any, x: Array) -> Array:
        for weight, bias in p[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        return x @ p[-1][0] + p[-1][1]

    return _with_adamw(parameters, model, lr)


def lenet(lr: float = 0.05, momentum: float = 0.9, classes: int = 10) -> tuple[State, Step]:
    """LeNet with SGD and momentum."""
    k = jax.random.split(jax.random.key(KEY), 4)
    parameters = {
        "conv1": (_uniform(k[0], (10, 1, 5, 5), 25), jnp.zeros(10)),
        "conv2": (_uniform(k[1], (20, 10, 5, 5), 250), jnp.zeros(20)),
        "linear1": (_uniform(k[2], (320, 50), 320), jnp.zeros(50)),
        "linear2": (_uniform(k[3], (50, classes), 50), jnp.zeros(classes)),
    }

    @jax.jit(donate_argnums=0)
    def step(state: State, images: Array, labels: Array) -> tuple[State, Array]:
        loss, grads = jax.value_and_grad(lambda p: _cross_entropy(_lenet(p, images), labels))(state[0])
        return _sgd(state, grads, lr, momentum), loss

    return (parameters, jax.tree.map(jnp.zeros_like, parameters)), step


def _lenet(p: dict[str, tuple[Array, Array]], x: Array) -> Array:
    for name in ("conv1", "conv2"):
        weight, bias = p[name]
        x = lax.conv_general_dilated(x, weight, (1, 1), "VALID") + bias[:, None, None]
        x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ p["linear1"][0] + p["linear1"][1])
    return x @ p["linear2"][0] + p["linear2"][1]


def _linear(keys: Iterator[Array], inputs: int, outputs: int) -> tuple[Array, Array]:
    return _uniform(next(keys), (inputs, outputs), inputs), jnp.zeros(outputs)


def _norm_parameters(width: int) -> tuple[Array, Array]:
    return jnp.ones(width), jnp.zeros(width)


def _block_parameters(keys: Iterator[Array], width: int) -> dict[str, tuple[Array, Array]]:
    return {
        "norm1": _norm_parameters(width),
        "qkv": _linear(keys, width, 3 * width),
        "out": _linear(keys, width, width),
        "norm2": _norm_parameters(width),
        "up": _linear(keys, width, 4 * width),
        "down": _linear(keys, 4 * width, width),
    }


def gpt(
    layers: int = 6, width: int = 128, heads: int = 4, vocabulary: int = 256, length: int = 64, lr: float = 1e-3
) -> tuple[State, Step]:
    """GPT with AdamW, at torch's defaults."""
    keys = iter(jax.random.split(jax.random.key(KEY), 3 + 4 * layers))

    parameters = {
        "tokens": jax.random.normal(next(keys), (vocabulary, width)),
        "positions": jax.random.normal(next(keys), (length, width)),
        "blocks": [_block_parameters(keys, width) for _ in range(layers)],
        "norm": _norm_parameters(width),
        "head": _uniform(next(keys), (width, vocabulary), width),
    }
    return _with_adamw(parameters, lambda p, tokens: _gpt(p, tokens, heads), lr)


def vit(
    layers: int = 6, width: int = 128, heads: int = 4, patch: int = 4, size: int = 32, classes: int = 10,
    lr: float = 1e-3,
) -> tuple[State, Step]:  # fmt: skip
    """ViT with AdamW, at torch's defaults."""
    keys = iter(jax.random.split(jax.random.key(KEY), 3 + 4 * layers))
    inputs = 3 * patch * patch
    parameters = {
        "patches": (_uniform(next(keys), (width, 3, patch, patch), inputs), jnp.zeros(width)),
        "positions": 0.02 * jax.random.normal(next(keys), ((size // patch) ** 2, width)),
        "blocks": [_block_parameters(keys, width) for _ in range(layers)],
        "norm": _norm_parameters(width),
        "head": _linear(keys, width, classes),
    }

    def model(p: Any, images: Array) -> Array:
        weight, bias = p["patches"]
        x = lax.conv_general_dilated(images, weight, (patch, patch), "VALID") + bias[:, None, None]
        x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2) + p["positions"]
        for layer in p["blocks"]:
            x = block(layer, x, heads, is_causal=False)
        return norm(p["norm"], x).mean(1) @ p["head"][0] + p["head"][1]

    return _with_adamw(parameters, model, lr)


def _with_adamw(parameters: Any, model: Callable[[Any, Array], Array], lr: float) -> tuple[State, Step]:
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros, jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.int32))

    @jax.jit(donate_argnums=0)
    def step(state: State, inputs: Array, targets: Array) -> tuple[State, Array]:
        loss, grads = jax.value_and_grad(lambda p: _cross_entropy(model(p, inputs), targets))(state[0])
        return _adamw(state, grads, lr), loss

    return state, step


def _adamw(state: State, grads: Any, lr: float) -> State:
    parameters, first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    bias1, bias2 = 1 - 0.9**count, 1 - 0.999**count

    def update(p: Array, m: Array, v: Array) -> Array:
        return p * (1 - lr * 0.01) - lr * (m / bias1) / (jnp.sqrt(v / bias2) + 1e-8)

    return jax.tree.map(update, parameters, first, second), first, second, count


def norm(p: tuple[Array, Array], x: Array) -> Array:
    """Over the last axis, in float32 whatever the dtype of ``x``."""
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    y = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return (y * p[0].astype(jnp.float32) + p[1].astype(jnp.float32)).astype(x.dtype)


def block(p: dict[str, tuple[Array, Array]], x: Array, heads: int, is_causal: bool = True) -> Array:
    """A layer of a transformer, norms first."""
    batch, length, width = x.shape
    qkv = norm(p["norm1"], x) @ p["qkv"][0] + p["qkv"][1]
    q, k, v = (part.reshape(batch, length, heads, width // heads) for part in jnp.split(qkv, 3, axis=-1))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal).reshape(batch, length, width)
    x = x + attended @ p["out"][0] + p["out"][1]
    hidden = jax.nn.gelu(norm(p["norm2"], x) @ p["up"][0] + p["up"][1], approximate=False)
    return x + hidden @ p["down"][0] + p["down"][1]


def _gpt(p: dict[str, Any], tokens: Array, heads: int) -> Array:
    x = p["tokens"][tokens] + p["positions"][: tokens.shape[1]]
    for layer in p["blocks"]:
        x = block(layer, x, heads)
    return norm(p["norm"], x) @ p["head"]
