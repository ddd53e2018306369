"""Steps of training as one writes them in jax for accelerators, in bfloat16 and over a mesh: for benchmarks/aot.py.

The mesh has one axis, over which batches and parameters are shared out (FSDP). ``step(state, inputs, targets)`` gives
the new state and the loss. Sizes and optimizers are those of the models in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks import jax_models

State = Any
Step = Callable[[State, Array, Array], tuple[State, Array]]
#: Shards activations, whose first dimension is the batch.
Spread = Callable[[Array], Array]


def cross_entropy(logits: Array, targets: Array) -> Array:
    """The mean over all positions, in float32."""
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def cross_entropy_of_tokens(logits: Array, targets: Array) -> Array:
    """The same for large vocabularies: XLA fuses the comparison; a gather reads logits in float32 from memory."""
    logits = logits.astype(jnp.float32)
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    return (jax.nn.logsumexp(logits, axis=-1) - jnp.where(is_target, logits, 0).sum(-1)).mean()


def sgd(loss: Callable[..., Any], lr: float = 0.05, momentum: float = 0.9) -> Step:
    """A step of a ``loss(parameters, buffers, inputs, targets)``, which gives the loss and the new buffers."""

    def step(state: State, inputs: Array, targets: Array) -> tuple[State, Array]:
        parameters, momenta, buffers = state
        (value, buffers), grads = jax.value_and_grad(loss, has_aux=True)(parameters, buffers, inputs, targets)
        momenta = jax.tree.map(lambda m, g: momentum * m + g, momenta, grads)
        return (jax.tree.map(lambda p, m: p - lr * m, parameters, momenta), momenta, buffers), value

    return step


def adamw(
    loss: Callable[..., Array], lr: float = 1e-3, clip: float | None = None, beta2: float = 0.999, decay: float = 0.01
) -> Step:
    """A step of a ``loss(parameters, inputs, targets)``; with ``clip`` the norm of all gradients is at most that."""

    def step(state: State, inputs: Array, targets: Array) -> tuple[State, Array]:
        parameters, first, second, count = state
        value, grads = jax.value_and_grad(loss)(parameters, inputs, targets)
        if clip is not None:
            squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)]
            scale = jnp.minimum(1.0, clip / (jnp.sqrt(sum(squares)) + 1e-6))
            grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, second, grads)
        bias1, bias2 = 1 - 0.9**count, 1 - beta2**count

        def update(p: Array, m: Array, v: Array) -> Array:
            root = jnp.sqrt(v / bias2.astype(v.dtype)) + 1e-8
            return p * (1 - lr * decay) - lr * (m / bias1.astype(m.dtype)) / root

        return (jax.tree.map(update, parameters, first, second), first, second, count), value

    return step


def adamw_state_shapes(parameters: Any) -> State:
    """Return the shapes of a state of ``adamw``, given those of the parameters."""
    return parameters, parameters, parameters, jax.ShapeDtypeStruct((), jnp.float32)


# --- ResNet-50

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_MOMENTUM = 0.1  # of the running statistics


def _shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _conv(inputs: int, outputs: int, kernel: int) -> dict[str, Any]:
    return {"weight": _shape(outputs, inputs, kernel, kernel), "scale": _shape(outputs), "shift": _shape(outputs)}


def resnet50(spread: Spread, classes: int = 1000) -> tuple[State, Step]:
    """With SGD and momentum. The state is (parameters, momenta, running statistics)."""
    blocks, inputs = [], 64
    for width, count in _STAGES:
        for number in range(count):
            block = {"a": _conv(inputs, width, 1), "b": _conv(width, width, 3), "c": _conv(width, 4 * width, 1)}
            if not number:
                block["shortcut"] = _conv(inputs, 4 * width, 1)
            blocks.append(block)
            inputs = 4 * width
    parameters = {"stem": _conv(3, 64, 7), "blocks": blocks, "head": (_shape(inputs, classes), _shape(classes))}
    of_layer = lambda layer: (layer["scale"], layer["scale"])
    running = jax.tree.map(of_layer, (parameters["stem"], blocks), is_leaf=lambda x: "scale" in x)

    def loss(p: Any, running: Any, images: Array, labels: Array) -> tuple[Array, Any]:
        logits, running = _resnet(p, running, images, spread)
        return cross_entropy(logits, labels), running

    return (parameters, parameters, running), sgd(loss)


def _conv_norm(p: dict[str, Array], running: Any, x: Array, stride: int = 1) -> tuple[Array, Any]:
    """The normalised convolution, and the statistics with those of this batch in them; statistics in float32."""
    pad = p["weight"].shape[2] // 2
    x = lax.conv_general_dilated(x, p["weight"], (stride, stride), [(pad, pad)] * 2)
    wide = lambda v: v.astype(jnp.float32)[:, None, None]
    x32 = x.astype(jnp.float32)
    mean = x32.mean((0, 2, 3))
    var = jnp.square(x32 - wide(mean)).mean((0, 2, 3))
    count = x.size // x.shape[1]
    new = mean, var * (count / (count - 1))
    running = jax.tree.map(lambda old, new: ((1 - _MOMENTUM) * old + _MOMENTUM * new).astype(old.dtype), running, new)
    y = (x32 - wide(mean)) * wide(lax.rsqrt(var + 1e-5)) * wide(p["scale"]) + wide(p["shift"])
    return y.astype(x.dtype), running


def _resnet(p: dict[str, Any], running: Any, x: Array, spread: Spread) -> tuple[Array, Any]:
    x, stem = _conv_norm(p["stem"], running[0], x, 2)
    pads = [(0, 0), (0, 0), (1, 1), (1, 1)]
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)
    strides = [2 if stage and not number else 1 for stage, (_, count) in enumerate(_STAGES) for number in range(count)]
    found = []
    for block, old, stride in zip(p["blocks"], running[1], strides, strict=True):
        new: dict[str, Any] = {}
        x = spread(x)
        y, new["a"] = _conv_norm(block["a"], old["a"], x)
        y, new["b"] = _conv_norm(block["b"], old["b"], jax.nn.relu(y), stride)
        y, new["c"] = _conv_norm(block["c"], old["c"], jax.nn.relu(y))
        if "shortcut" in block:
            x, new["shortcut"] = _conv_norm(block["shortcut"], old["shortcut"], x, stride)
        x = jax.nn.relu(y + x)
        found.append(new)
    return x.mean((2, 3)) @ p["head"][0] + p["head"][1], (stem, found)


# --- GPT-2


def _linear(inputs: int, outputs: int) -> tuple[Any, Any]:
    return _shape(inputs, outputs), _shape(outputs)


def gpt2(
    spread: Spread, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257, length: int = 1024
) -> tuple[State, Step]:
    """GPT-2 (small) with AdamW."""
    norm = _shape(width), _shape(width)
    block = {
        "norm1": norm, "qkv": _linear(width, 3 * width), "out": _linear(width, width),
        "norm2": norm, "up": _linear(width, 4 * width), "down": _linear(4 * width, width),
    }  # fmt: skip
    parameters = {
        "tokens": _shape(vocabulary, width), "positions": _shape(length, width), "blocks": [block] * layers,
        "norm": norm, "head": _shape(width, vocabulary),
    }  # fmt: skip

    def loss(p: Any, tokens: Array, targets: Array) -> Array:
        x = p["tokens"][tokens] + p["positions"][: tokens.shape[1]]
        for one in p["blocks"]:
            x = jax_models.block(one, spread(x), heads)
        return cross_entropy(jax_models.norm(p["norm"], spread(x)) @ p["head"], targets)

    return adamw_state_shapes(parameters), adamw(loss)


# --- Llama, as in examples/train_llama.py

#: Number of queries whose attention weights are in memory together.
ROWS = 256


def llama(
    spread: Spread, layers: int = 16, width: int = 2048, heads: int = 32, key_heads: int = 8, hidden: int = 8192,
    vocabulary: int = 128_256,
) -> tuple[State, Step]:  # fmt: skip
    """With AdamW, its layers as one loop over stacks of parameters, computed again in backward."""
    size = width // heads
    shapes = {
        "norm1": (width,), "query": (width, heads * size), "key": (width, key_heads * size),
        "value": (width, key_heads * size), "out": (heads * size, width), "norm2": (width,),
        "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width),
    }  # fmt: skip
    blocks = {name: _shape(layers, *shape) for name, shape in shapes.items()}
    parameters = {
        "embedding": _shape(vocabulary, width), "blocks": blocks, "norm": _shape(width),
        "head": _shape(width, vocabulary),
    }  # fmt: skip

    def loss(p: Any, tokens: Array, targets: Array) -> Array:
        x = spread(p["embedding"][tokens])
        layer = jax.checkpoint(lambda x, p: (_decoder(p, spread(x), heads, key_heads), None))
        x, _ = lax.scan(layer, x, p["blocks"])
        return cross_entropy_of_tokens(_rms(p["norm"], spread(x)) @ p["head"], targets)

    return adamw_state_shapes(parameters), adamw(loss, 2e-3, 1.0, beta2=0.95, decay=0.1)


def _rms(scale: Array, x: Array) -> Array:
    x32 = x.astype(jnp.float32)
    return (x32 * lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _rotate(x: Array) -> Array:
    half = x.shape[-1] // 2
    frequencies = 500_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def _attend(q: Array, k: Array, v: Array) -> Array:
    """Causal attention, one block of queries after another; backward computes the weights of a block again."""
    batch, length, heads, size = q.shape
    rows = ROWS if length % ROWS == 0 else length

    @jax.checkpoint
    def block(number: Array, queries: Array) -> Array:
        mask = jnp.arange(length) <= (number * rows + jnp.arange(rows))[:, None]
        return jax.nn.dot_product_attention(queries, k, v, mask=mask[None, None])

    blocks = jnp.moveaxis(q.reshape(batch, -1, rows, heads, size), 1, 0)
    attended = lax.map(lambda block_of: block(*block_of), (jnp.arange(len(blocks)), blocks))
    return jnp.moveaxis(attended, 0, 1).reshape(q.shape)


def _decoder(p: dict[str, Array], x: Array, heads: int, key_heads: int) -> Array:
    batch, length, _ = x.shape
    normal = _rms(p["norm1"], x)
    q, k, v = ((normal @ p[name]).reshape(batch, length, count, -1)
               for name, count in (("query", heads), ("key", key_heads), ("value", key_heads)))  # fmt: skip
    attended = _attend(_rotate(q), _rotate(k), v)
    x = x + attended.reshape(batch, length, -1) @ p["out"]
    normal = _rms(p["norm2"], x)
    return x + (jax.nn.silu(normal @ p["gate"]) * (normal @ p["up"])) @ p["down"]
