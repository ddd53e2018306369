"""Keys of the engine give the numbers of jax's threefry2x32 keys, without a loop."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering import threefry

SHAPES = [(), (5, 7, 2), (0, 3), (2, 1000)]
DRAWS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "8 bits": lambda key, shape: jax.random.bits(key, shape, np.uint8),
    "16 bits": lambda key, shape: jax.random.bits(key, shape, np.uint16),
    "32 bits": lambda key, shape: jax.random.bits(key, shape, np.uint32),
    "64 bits": lambda key, shape: jax.random.bits(key, shape, np.uint64),
    "uniform": jax.random.uniform,
    "uniform of 16 bits": lambda key, shape: jax.random.uniform(key, shape, jnp.bfloat16),
    "normal": lambda key, shape: jax.random.normal(key, shape, np.float64),
    "exponential": jax.random.exponential,
    "bernoulli": lambda key, shape: jax.random.bernoulli(key, 0.3, shape),
    "randint": lambda key, shape: jax.random.randint(key, shape, -5, 77),
    "split": lambda key, shape: jax.random.key_data(jax.random.split(key, shape)),
    "fold_in": lambda key, shape: jax.random.uniform(jax.random.fold_in(key, 77), shape),
    "vmap": lambda key, shape: jax.vmap(lambda one: jax.random.uniform(one, shape))(jax.random.split(key, 4)),
    "vmap of fold_in": lambda key, shape: jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), shape))(
        jnp.arange(3)
    ),
}


def both(draw: Callable[..., jax.Array], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    data = jnp.asarray([5, 0xFFFFFFFF], np.uint32)
    keys = threefry.wrap_key_data(data), jax.random.wrap_key_data(data, impl="threefry2x32")
    found, expected = (np.asarray(jax.jit(lambda key: draw(key, shape))(key)) for key in keys)
    return found, expected


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_of_jax(name: str) -> None:
    with jax.enable_x64(True):
        for shape in SHAPES:
            np.testing.assert_array_equal(*both(DRAWS[name], shape), err_msg=str(shape))


def test_elements_that_jax_does_not_number_by_position() -> None:
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(*both(jax.random.uniform, (3, 5)))
        np.testing.assert_array_equal(*both(DRAWS["split"], (4,)))


def test_a_draw_has_no_loop() -> None:
    key = threefry.wrap_key_data(jnp.asarray([5, 7], np.uint32))
    text = jax.jit(lambda key: jax.random.bernoulli(jax.random.fold_in(key, 3), 0.3, (4, 5))).lower(key).as_text()
    assert "stablehlo.while" not in text
