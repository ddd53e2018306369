"""The Llama of benchmarks/jax_large.py computes a training step of examples/train_llama.py, on the CPU in float32."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import jax_large

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_LAYERS = {
    "norm1": "before_attention", "query": "attention.query", "key": "attention.key", "value": "attention.value",
    "out": "attention.out", "norm2": "before_mlp", "gate": "gate", "up": "up", "down": "down",
}  # fmt: skip


def _to_jax(named: dict[str, torch.Tensor], layers: int) -> dict[str, Any]:
    """Return tensors as the parameters of jax_large: matrices are transposed, layers are stacked."""

    def get(name: str) -> np.ndarray:
        array = named[f"{name}.weight"].detach().numpy().copy()
        return array.T if array.ndim == 2 and name != "embedding" else array

    blocks = {ours: np.stack([get(f"blocks.{i}.{theirs}") for i in range(layers)]) for ours, theirs in _LAYERS.items()}
    return {"embedding": get("embedding"), "blocks": blocks, "norm": get("norm"), "head": get("head")}


@pytest.mark.parametrize("length", [24, 2 * jax_large.ROWS], ids=["one block", "two blocks"])
def test_a_step_in_jax_equals_the_example(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, both moments of the optimizer (the clipped gradients) and the new parameters."""
    monkeypatch.syspath_prepend(_EXAMPLES)
    module = importlib.import_module("train_llama")
    config = module.Config(width=32, layers=2, heads=4, key_heads=2, hidden=48, vocabulary=64)
    torch.manual_seed(0)
    model = module.Llama(config, remat=True)
    text = torch.randint(config.vocabulary, (2, length + 1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

    sizes = {name: getattr(config, name) for name in ("layers", "width", "heads", "key_heads", "hidden", "vocabulary")}
    shapes, step = jax_large.llama(lambda x: x, **sizes)
    parameters = jax.tree.map(jnp.asarray, _to_jax(before, config.layers))
    assert jax.tree.map(jnp.shape, parameters) == jax.tree.map(lambda s: s.shape, shapes[0])
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    tokens = jnp.asarray(text.numpy(), jnp.int32)
    (new, first, second, _), value = jax.jit(step)(
        (parameters, zeros, zeros, jnp.zeros(())), tokens[:, :-1], tokens[:, 1:]
    )

    assert float(value) == pytest.approx(loss.item(), rel=1e-5)
    states = {name: optimizer.state[p] for name, p in model.named_parameters()}
    for found, named, atol in (
        (first, {name: state["exp_avg"] for name, state in states.items()}, 1e-6),
        (second, {name: state["exp_avg_sq"] for name, state in states.items()}, 1e-8),
        (new, dict(model.named_parameters()), 1e-4),
    ):
        jax.tree.map(
            lambda a, b, atol=atol: np.testing.assert_allclose(a, b, 1e-3, atol), found, _to_jax(named, config.layers)
        )
