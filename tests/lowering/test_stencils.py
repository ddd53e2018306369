"""Banded matrices: multiplied as dense ones, by slices where their rows repeat."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from torch_xla._engine.lowering.banded_matrix import BandedMatrix
from torch_xla._engine.lowering.rules import upsample

FILTERS = {name: mode for name, mode in upsample.MODES.items() if name.endswith(("2d", "aa"))}
FILTERS["nearest"] = upsample._NEAREST  # type: ignore[assignment]  # takes what the others take


def dense(matrix: BandedMatrix) -> np.ndarray:
    result = np.zeros((len(matrix.index), matrix.inputs))
    rows = np.arange(len(matrix.index))[:, None]
    np.add.at(result, (rows, matrix.index), matrix.weights)
    return result


SIZES = [1, 2, 3, 5, 6, 9]


def matrices(name: str) -> list[BandedMatrix]:
    found = [
        FILTERS[name](inputs, outputs, corners, None, np.float64)
        for inputs, outputs in itertools.product(SIZES, SIZES)
        for corners in ([False, True] if name in ("upsample_bilinear2d", "upsample_bicubic2d") else [False])
    ]
    return [each for matrix in found for each in (matrix, matrix.transpose())]


@pytest.mark.parametrize("name", FILTERS)
def test_product(name: str) -> None:
    """Only rows with a weight for an infinity see it."""
    generator = np.random.default_rng(0)
    with jax.enable_x64(True), jax.disable_jit():
        for matrix in matrices(name):
            x = generator.standard_normal((matrix.inputs, 2))
            where = generator.integers(matrix.inputs)
            x[where, 1] = np.inf
            found = np.asarray(matrix.apply(jax.numpy.asarray(x), 0))
            np.testing.assert_allclose(found[:, 0], dense(matrix) @ x[:, 0], rtol=1e-12, atol=1e-12)
            assert np.array_equal(~np.isfinite(found[:, 1]), dense(matrix)[:, where] != 0)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "gathers"),
    [
        ("upsample_bilinear2d", 8, 16, False),
        ("upsample_bilinear2d", 16, 8, False),
        ("upsample_bilinear2d", 12, 8, False),
        ("upsample_bicubic2d", 8, 24, False),
        ("nearest", 8, 16, False),
        ("nearest", 32, 24, True),  # copies in a period
        ("upsample_bilinear2d", 31, 37, True),  # the rows do not repeat
    ],
)
def test_inputs_are_read_by_slices(name: str, inputs: int, outputs: int, gathers: bool) -> None:
    matrix = FILTERS[name](inputs, outputs, False, None, np.float32)
    for each in (matrix, matrix.transpose()):
        text = jax.jit(lambda x, each=each: each.apply(x, 0)).lower(np.zeros(each.inputs, np.float32)).as_text()
        assert ("stablehlo.gather" in text) == gathers
