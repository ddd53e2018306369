"""torch's flex_attention on xla tensors: each call is one graph node, with one more for the gradient.

``score_mod`` and ``mask_mod`` are captured as functions of scalars (platform_kernels/flex_attention.py). Tensors that
they use, such as tables of biases and document numbers, are inputs of the node; those of ``score_mod`` have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import capture_function, control_flow, jax_function, traced_function
from torch_xla._engine.capture.capture_function import CapturedFunction
from torch_xla._engine.capture.joint_graph import save_all
from torch_xla._engine.platform_kernels.flex_attention import FlexAttention

_WHAT = "flex_attention"
_POSITION = jax.ShapeDtypeStruct((), np.int32)


class _IndexByPosition(TorchFunctionMode):
    """Make ``table[position, ...]`` an operation; torch reads an index that is a scalar tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            table, index = args
            parts = index if isinstance(index, tuple) else (index,)
            is_position = [isinstance(p, torch.Tensor) and p.dim() == 0 for p in parts]
            if any(is_position) and all(
                fits or (isinstance(p, int) and not isinstance(p, bool))
                for fits, p in zip(is_position, parts, strict=True)
            ):
                indices = [p if isinstance(p, torch.Tensor) else torch.full((), p, device=table.device) for p in parts]
                return torch.ops.aten.index.Tensor(table, indices)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class _Modification:
    """A captured ``score_mod`` or ``mask_mod``, and the tensors that it uses: its arguments after the positions."""

    recorded: CapturedFunction
    tensors: list[torch.Tensor]

    def as_jax(self, what: str) -> Callable[..., jax.Array]:
        run = traced_function.as_custom_vjp(traced_function.trace_captured(what, self.recorded, save_all))
        return lambda *arrays: run(None, *arrays)[0]


def _capture(
    what: str,
    function: Callable[..., Any],
    leading: Sequence[jax.ShapeDtypeStruct],
    buffers: Sequence[Any],
    needs_grad: Callable[[torch.Tensor], bool] | None,
    device: int,
) -> _Modification:
    """Capture a function of scalars like ``leading`` and ``buffers``, of which some may be Python numbers."""
    places = [i for i, b in enumerate(buffers) if isinstance(b, torch.Tensor)]
    tensors = [buffers[i] for i in places]

    def called(*scalars: torch.Tensor) -> torch.Tensor:
        full = list(buffers)
        for place, tensor in zip(places, scalars[len(leading) :], strict=True):
            full[place] = tensor
        with _IndexByPosition():
            found = function(*scalars[: len(leading)], *full)
        if not isinstance(found, torch.Tensor) or found.dim() != 0:
            shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise RuntimeError(f"{what} must return a scalar tensor for scalar arguments, got {shape}")
        return found

    inputs = [0, *(i for i, t in enumerate(tensors, len(leading)) if needs_grad(t))] if needs_grad else []
    captured: list[torch.Tensor] = []
    structs = [*leading, *jax_function.shape_structs(tensors)]
    recorded = capture_function.capture_function(what, called, structs, inputs, device, captured)
    if recorded.random:
        raise NotImplementedError(f"{what} must not draw random numbers: the order of its calls is undefined")
    return _Modification(recorded, [*tensors, *captured])


@dataclass(frozen=True, slots=True)
class FlexCall:
    """The static part of a call: its scale and its captured functions."""

    scale: float
    score: _Modification
    mask: _Modification

    @property
    def key(self) -> Hashable:
        """Equal for calls that compute the same function of their tensors."""
        return self.scale, self.score.recorded.key, self.mask.recorded.key

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the functions use; those of the mask have no gradient."""
        return [*self.score.tensors, *(t.detach() for t in self.mask.tensors)]

    def attend(self, query: jax.Array, key: jax.Array, value: jax.Array, *buffers: jax.Array) -> Sequence[jax.Array]:
        """Compute the attention; ``buffers`` are the arrays of ``tensors``. Only for a call that is not cached."""
        call = FlexAttention(
            self.scale, self.score.as_jax(f"{_WHAT}: score_mod"), self.mask.as_jax(f"{_WHAT}: mask_mod")
        )
        count = len(self.score.tensors)
        return list(call.attend(query, key, value, buffers[:count], buffers[count:]))


def capture_call(
    query: torch.Tensor,
    score_mod: Callable[..., Any],
    mask_mod: Callable[..., Any],
    scale: float,
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
    needs_grad: Callable[[torch.Tensor], bool] | None,
) -> FlexCall:
    """Capture the functions of a call, for scores of the query's dtype, at least float32.

    Args:
      needs_grad: Whether a tensor of ``score_buffers`` needs a gradient; None if nothing does.

    Raises:
      RuntimeError: A function does not return a scalar, or needs the value of a tensor.
      NotImplementedError: A function draws random numbers.
    """
    device = query.device.index
    score = jax.ShapeDtypeStruct((), dtypes.numpy_dtype(torch.promote_types(query.dtype, torch.float32)))
    with torch.set_grad_enabled(needs_grad is not None):
        return FlexCall(
            scale,
            _capture(f"{_WHAT}: score_mod", score_mod, [score, *[_POSITION] * 4], score_buffers, needs_grad, device),
            _capture(f"{_WHAT}: mask_mod", mask_mod, [_POSITION] * 4, mask_buffers, None, device),
        )


def attend(call: FlexCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the attention output, and the log-sum-exp and the maximum of each row's scores, in units of log(2).

    ``query`` is [batch, heads, rows, size]; ``key`` and ``value`` may have fewer heads.
    """
    attended = lambda _, *arrays: call.attend(*arrays)
    tensors = [query, key, value, *call.tensors]
    out, sums, top = control_flow.record_function(_WHAT, attended, tensors, False, (_WHAT, call.key))
    return out, sums, top.detach()


def attend_backward(
    call: FlexCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cotangents: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """Return the gradients of query, key, value and the score function's tensors; integers have zeros.

    ``cotangents`` are those of the attention output and of the log-sum-exp; None is zero.
    """
    tensors = [query, key, value, *call.tensors]
    given = [c is not None for c in cotangents]
    wanted = 3 + len(call.score.tensors)

    def backward(_: Any, *arrays: jax.Array) -> Sequence[jax.Array]:
        inputs = arrays[: len(tensors)]
        is_graded = [i < wanted and bool(jnp.issubdtype(x.dtype, jnp.inexact)) for i, x in enumerate(inputs)]

        def of_graded(*chosen: jax.Array) -> Sequence[jax.Array]:
            rest = iter(chosen)
            return call.attend(*(next(rest) if is_one else x for x, is_one in zip(inputs, is_graded, strict=True)))[:2]

        outs, vjp = jax.vjp(of_graded, *(x for x, is_one in zip(inputs, is_graded, strict=True) if is_one))
        known = iter(arrays[len(tensors) :])
        full = [next(known).astype(o.dtype) if g else jnp.zeros_like(o) for o, g in zip(outs, given, strict=True)]
        found = iter(vjp(full))
        pairs = list(zip(inputs, is_graded, strict=True))[:wanted]
        return [next(found) if is_one else jnp.zeros_like(x) for x, is_one in pairs]

    full = [*tensors, *(c for c in cotangents if c is not None)]
    with torch.no_grad():
        return control_flow.record_function(
            f"{_WHAT}_backward", backward, full, False, (f"{_WHAT}_backward", call.key, tuple(given))
        )
