"""Lowering rules of one recurrent layer in one direction, forward and backward: each is one ``lax.scan`` over time.

    input projection (one matmul for all steps) -> scan: hidden projection, cell -> output, residuals
    gradient of the output -> scan in the other direction: cell -> gradients of the gates -> one matmul per weight

Only what depends on the previous step is in the loop, so the program has the same size for every sequence length. The
residuals are the pre-activations of the gates, the cell states of an LSTM, and its hidden states before the projection.
The operators are recorded by recorder/csrc/aten/recurrent.cpp, which also combines layers and directions. On a CPU, one
kernel runs the loop of an LSTM in float32 (cpu_backend/csrc/kernels/lstm.cpp).

Shapes: T steps, B sequences, I inputs, H hidden units, P outputs (H, or the projection's size), G gates. ``lengths`` is
int64[B] or None; a sequence keeps its state in the steps after its end (before it, if ``reverse``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.cast import opmath
from torch_xla._engine.lowering.recurrent_cells import CELLS, Arrays, Weights
from torch_xla._engine.lowering.registry import lower
from torch_xla._engine.lowering.rules.matmul import precision_for


def _matmul(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute einsum, accumulated in float32 or wider."""
    wide = opmath(np.dtype(a.dtype))
    return jnp.einsum(subscripts, a, b, precision=precision_for(np.dtype(a.dtype)), preferred_element_type=wide)


def _active_steps(lengths: jax.Array | None, steps: int) -> jax.Array | None:
    """Return bool[T, B, 1]: whether a sequence has that step."""
    if lengths is None:
        return None
    return (jnp.arange(steps)[:, None] < lengths)[..., None]


def _blocks(x: jax.Array, t: jax.Array, count: int) -> list[jax.Array]:
    """Return the blocks [B, H] of x[t], where x is [T, B, count * H].

    XLA does not combine a slice of x[t] with the slice that reads x[t]; on a CPU such loops are not vectorized.
    """
    width = x.shape[-1] // count
    return [lax.dynamic_slice(x, (t, 0, k * width), (1, x.shape[1], width))[0] for k in range(count)]


def _select(active: jax.Array | None, new: Arrays, old: Arrays) -> tuple[jax.Array, ...]:
    return tuple(new) if active is None else tuple(jnp.where(active, a, b) for a, b in zip(new, old, strict=True))


#: The CPU kernel is faster from this number of multiplications and sequences, and for fewer weights than that, which
#: stay in the cache.
_LEAST_PRODUCTS, _LEAST_SEQUENCES, _WEIGHTS_LIMIT = 1 << 20, 4, 1 << 20


def _runs_on_kernel(mode: str, w: Weights, x: jax.Array, lengths: jax.Array | None) -> bool:
    """Return whether a CPU kernel runs the loop: an LSTM in float32, without projection and packed sequences."""
    return (
        mode == "lstm"
        and w.w_hr is None
        and lengths is None
        and x.shape[1] >= _LEAST_SEQUENCES
        and w.w_hh.size < _WEIGHTS_LIMIT
        and cpu_kernel_call.all_float32(x, w.w_hh)
        and cpu_kernel_call.is_profitable(math.prod(x.shape[:2]) * w.w_hh.size, _LEAST_PRODUCTS)
    )


@lower("torch_xla::rnn_layer")
def _layer(
    x: jax.Array, state: Arrays, weights: Arrays, mode: str, reverse: bool, lengths: jax.Array | None
) -> list[jax.Array]:
    """Return ``[output, *last state, gates, *cell states, *hidden states before the projection]``."""
    w, wide = Weights.from_list(weights), opmath(np.dtype(x.dtype))
    inputs = _matmul("tbi,gi->tbg", x, w.w_ih)
    inputs = inputs if w.b_ih is None else inputs + w.b_ih.astype(wide)
    if not _runs_on_kernel(mode, w, x, lengths):
        return _scan(inputs, state, w, mode, reverse, lengths)
    inputs = inputs if w.b_hh is None else inputs + w.b_hh
    outs = [jax.ShapeDtypeStruct((*x.shape[:2], width), x.dtype) for width in (state[0].shape[-1], inputs.shape[-1])]
    output, gates, cells = cpu_kernel_call.cpu_kernel_call_in_place(
        "lstm", functools.partial(_lstm_loop, reverse), [inputs, *state, w.w_hh.T], [*outs, outs[0]], {0: 1},
        reverse=reverse,
    )  # fmt: skip
    end = 0 if reverse else -1
    return [output, output[end], cells[end], gates, cells]


def _lstm_loop(reverse: bool, inputs: jax.Array, h: jax.Array, c: jax.Array, weight: jax.Array) -> list[jax.Array]:
    """Return the hidden states, the gates and the cell states of each step: the default of the CPU kernel."""
    output, _, _, gates, cells = _scan(
        inputs, [h, c], Weights(weight.T, weight.T, None, None, None), "lstm", reverse, None
    )
    return [output, gates, cells]


def _scan(
    inputs: jax.Array, state: Arrays, w: Weights, mode: str, reverse: bool, lengths: jax.Array | None
) -> list[jax.Array]:
    """Return the results of ``_layer`` for projected inputs [T, B, G*H] with their bias."""
    cell, dtype = CELLS[mode], state[0].dtype
    wide = opmath(np.dtype(dtype))
    w_hh, w_hr = w.w_hh.T, None if w.w_hr is None else w.w_hr.T

    def step(state: tuple[jax.Array, ...], xs: Any) -> tuple[tuple[jax.Array, ...], Any]:
        t, active = xs
        hidden = _matmul("bp,pg->bg", state[0].astype(dtype), w_hh)
        hidden = hidden if w.b_hh is None else hidden + w.b_hh.astype(wide)
        gates = cell.join(_blocks(inputs, t, cell.projected), jnp.split(hidden, cell.projected, -1))
        new = cell.step(gates, *state)
        unprojected: tuple[jax.Array, ...] = ()
        if w_hr is not None:
            unprojected = (new[0].astype(dtype),)
            new = (_matmul("bh,hp->bp", new[0].astype(dtype), w_hr), *new[1:])
        new = _select(active, new, state)
        saved = jnp.concatenate(gates, -1).astype(dtype)
        return new, (new[0].astype(dtype), saved, *(c.astype(dtype) for c in new[1:]), *unprojected)

    first = tuple(s.astype(wide) for s in state)
    xs = jnp.arange(len(inputs)), _active_steps(lengths, len(inputs))
    last, (output, *residuals) = lax.scan(step, first, xs, reverse=reverse)
    return [output, *(s.astype(dtype) for s in last), *residuals]


def _previous_states(first: jax.Array, states: jax.Array, reverse: bool) -> jax.Array:
    """Return the state before each step, of the states after each step."""
    if reverse:
        return jnp.concatenate([states[1:], first[None]])
    return jnp.concatenate([first[None], states[:-1]])


@lower("torch_xla::rnn_layer_backward")
def _layer_backward(
    grads: Arrays, x: jax.Array, state: Arrays, weights: Arrays, output: jax.Array, residuals: Arrays,
    mode: str, reverse: bool, lengths: jax.Array | None,
) -> list[jax.Array]:  # fmt: skip
    """Return the gradients of ``[x, *state, *weights]``; ``grads`` are those of the output and of the last state."""
    cell, w, dtype = CELLS[mode], Weights.from_list(weights), x.dtype
    wide = opmath(np.dtype(dtype))
    before = _previous_states(state[0], output, reverse)
    if _runs_on_kernel(mode, w, x, lengths):
        arrays = [grads[0], *residuals, state[1], w.w_hh, *grads[1:]]
        grad_gates, *first = cpu_kernel_call.cpu_kernel_call_in_place(
            "lstm_backward", functools.partial(_lstm_backward_loop, reverse), arrays,
            [residuals[0], *state], {5: 1, 6: 2}, reverse=reverse,
        )  # fmt: skip
        grad_projected: Arrays = ()
    else:
        first, grad_gates, grad_projected = _scan_backward(grads, before, state, w, residuals, mode, reverse, lengths)
    grad_inputs, grad_hidden = (jnp.concatenate(g, -1) for g in cell.split(jnp.split(grad_gates, cell.saved, -1)))
    grad_weights = [_matmul("tbg,tbi->gi", grad_inputs, x), _matmul("tbg,tbp->gp", grad_hidden, before)]
    if w.b_ih is not None:
        grad_weights += [jnp.sum(g, (0, 1), dtype=wide) for g in (grad_inputs, grad_hidden)]
    if w.w_hr is not None:
        grad_weights.append(_matmul("tbp,tbh->ph", grad_projected[0], residuals[-1]))
    results = [_matmul("tbg,gi->tbi", grad_inputs, w.w_ih), *first, *grad_weights]
    return [r.astype(dtype) for r in results]


def _lstm_backward_loop(
    reverse: bool, grad_output: jax.Array, gates: jax.Array, cells: jax.Array, c: jax.Array, w_hh: jax.Array,
    grad_h: jax.Array, grad_c: jax.Array,
) -> list[jax.Array]:  # fmt: skip
    """Return the gradients of the gates and of the first state: the default of the CPU kernel.

    The gradients of an LSTM do not depend on its hidden states.
    """
    hidden, grads = jnp.zeros_like(cells), [grad_output, grad_h, grad_c]
    w = Weights(w_hh, w_hh, None, None, None)
    first, grad_gates, _ = _scan_backward(grads, hidden, [grad_h, c], w, [gates, cells], "lstm", reverse, None)
    return [grad_gates, *first]


def _scan_backward(
    grads: Arrays, hidden: jax.Array, state: Arrays, w: Weights, residuals: Arrays,
    mode: str, reverse: bool, lengths: jax.Array | None,
) -> tuple[Arrays, jax.Array, Arrays]:  # fmt: skip
    """Return the gradients of the first state, of the gates [T, B, G*H], and of the projection's result, if any.

    ``hidden`` is the hidden state before each step.
    """
    cell, dtype, steps = CELLS[mode], hidden.dtype, len(hidden)
    wide = opmath(np.dtype(dtype))
    gates, *rest = residuals
    cells = zip(state[1:], rest[: cell.states - 1], strict=True)
    before = [hidden, *(_previous_states(first, states, reverse) for first, states in cells)]

    def step(grad_state: tuple[jax.Array, ...], xs: Any) -> tuple[tuple[jax.Array, ...], Any]:
        grad_output, t, before, active = xs
        total = (grad_state[0] + grad_output.astype(wide), *grad_state[1:])
        taken = _select(active, total, [jnp.zeros_like(g) for g in total])
        grad_h = taken[0].astype(dtype)
        if w.w_hr is not None:
            taken = (_matmul("bp,ph->bh", grad_h, w.w_hr), *taken[1:])
        # The hidden state that an LSTM's cell ignores has the projection's width.
        blocks = [gate.astype(wide) for gate in _blocks(gates, t, cell.saved)]
        _, transpose = jax.vjp(cell.step, blocks, *(b.astype(wide) for b in before))
        grad_gates, *grad_before = transpose(tuple(taken))
        grad_hidden = jnp.concatenate(cell.split(grad_gates)[1], -1).astype(dtype)
        grad_before[0] += _matmul("bg,gp->bp", grad_hidden, w.w_hh)
        projected = () if w.w_hr is None else (grad_h,)
        return _select(active, grad_before, total), (jnp.concatenate(grad_gates, -1).astype(dtype), *projected)

    last = tuple(g.astype(wide) for g in grads[1:])
    xs = (grads[0], jnp.arange(steps), before, _active_steps(lengths, steps))
    first, (grad_gates, *grad_projected) = lax.scan(step, last, xs, reverse=not reverse)
    return first, grad_gates, grad_projected


def _layer_meta(
    x: torch.Tensor, state: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], mode: str, *_: Any
) -> list[torch.Tensor]:
    steps, batch, _width = x.shape
    cell, hidden = CELLS[mode], weights[0].shape[0] // {"lstm": 4, "gru": 3}.get(mode, 1)
    widths = [state[0].shape[-1], *(s.shape[-1] for s in state)]
    output = x.new_empty(steps, batch, widths[0])
    residuals = [cell.saved * hidden, *[hidden] * (cell.states - 1), *[hidden] * (len(weights) % 2)]
    return [output, *(torch.empty_like(s) for s in state), *(x.new_empty(steps, batch, n) for n in residuals)]


def _layer_backward_meta(
    grads: Any, x: torch.Tensor, state: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], *_: Any
) -> list[torch.Tensor]:
    return [torch.empty_like(t) for t in (x, *state, *weights)]


_library = torch.library.Library("torch_xla", "FRAGMENT")
_SCHEMAS = {
    "rnn_layer(Tensor input, Tensor[] state, Tensor[] weights, str mode, bool reverse, Tensor? lengths) -> Tensor[]": (
        _layer_meta
    ),
    "rnn_layer_backward(Tensor[] grads, Tensor input, Tensor[] state, Tensor[] weights, Tensor output, "
    "Tensor[] residuals, str mode, bool reverse, Tensor? lengths) -> Tensor[]": _layer_backward_meta,
}


def define() -> None:
    """Register the operators with torch, once."""
    for schema, meta in _SCHEMAS.items():
        _library.impl(_library.define(schema), meta, "Meta")
