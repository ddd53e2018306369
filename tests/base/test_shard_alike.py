"""The ``shard_alike`` of compat/shard_alike.py, for jax without one: values, gradients, batches, one group of XLA's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.compat import shard_alike


def test_values_and_gradients() -> None:
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))
    for function in (shard_alike.own_shard_alike, jax.jit(shard_alike.own_shard_alike)):
        first, second = function(x, y)
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, y)
    product = lambda a, b: jnp.multiply(*shard_alike.own_shard_alike(a, b)).sum()
    np.testing.assert_array_equal(jax.grad(product)(x, y), y)
    np.testing.assert_array_equal(jax.jit(jax.grad(product, argnums=1))(x, y), x)
    one = lambda a: shard_alike.own_shard_alike(a * 2, y)[0].sum()  # one of the two has no gradient
    np.testing.assert_array_equal(jax.grad(one)(x), 2 * y)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (0, 1), (2, 1)])
def test_batches(dims: tuple[int | None, int | None]) -> None:
    x, y = (
        jnp.arange(6.0).reshape(2, 3) if d is None else jnp.moveaxis(jnp.arange(24.0).reshape(4, 2, 3), 0, d)
        for d in dims
    )
    got = jax.vmap(shard_alike.own_shard_alike, in_axes=dims)(x, y)
    want = jax.vmap(lambda a, b: (a, b), in_axes=dims)(x, y)
    for value, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_both_are_in_one_group() -> None:
    text = jax.jit(shard_alike.own_shard_alike).lower(jnp.ones(4), jnp.zeros(4)).as_text()
    assert text.count("sdy.sharding_group") == 2


def test_other_shapes_are_rejected() -> None:
    with pytest.raises(ValueError, match="the shapes differ"):
        shard_alike.own_shard_alike(jnp.ones(3), jnp.ones(4))
