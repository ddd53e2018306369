"""The cells of recurrent layers and their parameters, for rules/recurrent.py.

Shapes: T steps, B sequences, I inputs, H hidden units, P outputs (H, or the projection's size), G gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

Arrays = Sequence[jax.Array]


def _add(inputs: Arrays, hidden: Arrays) -> list[jax.Array]:
    return [a + b for a, b in zip(inputs, hidden, strict=True)]


def _repeat(gates: Arrays) -> tuple[Arrays, Arrays]:
    return gates, gates


def _lstm(gates: Arrays, _: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, g, o = gates
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(gates: Arrays, h: jax.Array) -> tuple[jax.Array]:
    r, z, n, n_hidden = gates
    z, n = jax.nn.sigmoid(z), jnp.tanh(n + jax.nn.sigmoid(r) * n_hidden)
    return ((h - n) * z + n,)


def _join_gru(inputs: Arrays, hidden: Arrays) -> list[jax.Array]:
    """Sum the projections for r and z; keep both for n, where r scales the hidden one."""
    return [*_add(inputs[:2], hidden[:2]), inputs[2], hidden[2]]


def _split_gru(gates: Arrays) -> tuple[Arrays, Arrays]:
    r, z, n, n_hidden = gates
    return [r, z, n], [r, z, n_hidden]


@dataclass(frozen=True)
class Cell:
    """One kind of cell, as torch defines it: everything but the projections, elementwise.

    ``join(inputs, hidden)`` combines the projections, a list with a block [B, H] for each gate, into the
    pre-activations, also by blocks, and ``split`` is its transpose. ``step(gates, h, *c)`` returns the next
    ``(h, *c)``.
    """

    states: int  # 2 if it has a cell state, else 1
    projected: int  # blocks of H in each projection
    saved: int  # blocks of H in the pre-activations
    step: Callable[..., tuple[jax.Array, ...]]
    join: Callable[[Arrays, Arrays], list[jax.Array]] = _add
    split: Callable[[Arrays], tuple[Arrays, Arrays]] = _repeat


CELLS = {
    "lstm": Cell(2, 4, 4, _lstm),
    "gru": Cell(1, 3, 4, _gru, _join_gru, _split_gru),
    "rnn_tanh": Cell(1, 1, 1, lambda gates, _: (jnp.tanh(gates[0]),)),
    "rnn_relu": Cell(1, 1, 1, lambda gates, _: (jax.nn.relu(gates[0]),)),
}


class Weights(NamedTuple):
    """The parameters of a layer and direction: w_ih [G*H, I], w_hh [G*H, P], biases [G*H], projection [P, H]."""

    w_ih: jax.Array
    w_hh: jax.Array
    b_ih: jax.Array | None
    b_hh: jax.Array | None
    w_hr: jax.Array | None

    @classmethod
    def from_list(cls, arrays: Arrays) -> Weights:
        """Unpack the flat list of torch: the projection is last, and there are two biases or none."""
        rest = list(arrays[2:])
        w_hr = rest.pop() if len(rest) % 2 else None
        b_ih, b_hh = rest or (None, None)
        return cls(arrays[0], arrays[1], b_ih, b_hh, w_hr)
