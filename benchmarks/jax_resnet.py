"""ResNet-18 with SGD and momentum as one writes it in jax; sizes are those of benchmarks/models.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.jax_models import KEY, State, Step, _cross_entropy, _sgd, _uniform

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the first of two blocks
_MOMENTUM = 0.1  # of the running statistics


def resnet(lr: float = 0.05, momentum: float = 0.9, classes: int = 10) -> tuple[State, Step]:
    """ResNet-18. The state is ((parameters, momenta), running statistics)."""
    keys = iter(jax.random.split(jax.random.key(KEY), 32))

    def conv(inputs: int, outputs: int, kernel: int) -> dict[str, Array]:
        weight = _uniform(next(keys), (outputs, inputs, kernel, kernel), inputs * kernel * kernel)
        return {"weight": weight, "scale": jnp.ones(outputs), "shift": jnp.zeros(outputs)}

    blocks, inputs = [], 64
    for outputs, stride in _STAGES:
        for first in (True, False):
            block = {"conv1": conv(inputs, outputs, 3), "conv2": conv(outputs, outputs, 3)}
            if first and (stride > 1 or inputs != outputs):
                block["shortcut"] = conv(inputs, outputs, 1)
            blocks.append(block)
            inputs = outputs
    head = _uniform(next(keys), (512, classes), 512), jnp.zeros(classes)
    parameters = {"stem": conv(3, 64, 7), "blocks": blocks, "head": head}
    of_layer = lambda layer: (jnp.zeros_like(layer["shift"]), jnp.ones_like(layer["scale"]))
    running = jax.tree.map(of_layer, (parameters["stem"], blocks), is_leaf=lambda x: "scale" in x)
    momenta = jax.tree.map(jnp.zeros_like, parameters)

    @jax.jit(donate_argnums=0)
    def step(state: State, images: Array, labels: Array) -> tuple[State, Array]:
        def loss(p: Any) -> tuple[Array, Any]:
            logits, running = _resnet(p, state[1], images)
            return _cross_entropy(logits, labels), running

        (value, running), grads = jax.value_and_grad(loss, has_aux=True)(state[0][0])
        return (_sgd(state[0], grads, lr, momentum), running), value

    return ((parameters, momenta), running), step


def _conv_norm(p: dict[str, Array], running: Any, x: Array, stride: int = 1) -> tuple[Array, Any]:
    """The normalised convolution, and the statistics with those of this batch in them."""
    pad = p["weight"].shape[2] // 2
    x = lax.conv_general_dilated(x, p["weight"], (stride, stride), [(pad, pad)] * 2)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    count = x.size // x.shape[1]
    new = mean, var * (count / max(count - 1, 1))
    running = jax.tree.map(lambda old, new: (1 - _MOMENTUM) * old + _MOMENTUM * new, running, new)
    wide = lambda v: v[:, None, None]
    return (x - wide(mean)) * wide(lax.rsqrt(var + 1e-5) * p["scale"]) + wide(p["shift"]), running


def _resnet(p: dict[str, Any], running: Any, x: Array) -> tuple[Array, Any]:
    x, stem = _conv_norm(p["stem"], running[0], x, 2)
    x = lax.reduce_window(
        jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)]
    )
    strides = [stride if first else 1 for _, stride in _STAGES for first in (True, False)]
    found = []
    for block, old, stride in zip(p["blocks"], running[1], strides, strict=True):
        new: dict[str, Any] = {}
        y, new["conv1"] = _conv_norm(block["conv1"], old["conv1"], x, stride)
        y, new["conv2"] = _conv_norm(block["conv2"], old["conv2"], jax.nn.relu(y))
        if "shortcut" in block:
            x, new["shortcut"] = _conv_norm(block["shortcut"], old["shortcut"], x, stride)
        x = jax.nn.relu(y + x)
        found.append(new)
    return x.mean((2, 3)) @ p["head"][0] + p["head"][1], (stem, found)
