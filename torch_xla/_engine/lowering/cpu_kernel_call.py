"""Calls of ATen's kernels from programs for the CPU, where they are faster than what XLA makes of the same operation.

    on_cpu.call("convolution", default, (x, weight), outs, groups=1, ...)

gives what ``default(x, weight)`` gives. Lowered in a block of ``calls_allowed``, for a CPU, it is a custom call of the
handler of that name (cpu_backend/csrc); lowered anywhere else it is the default, so that programs for other platforms,
exported ones and those of jax.grad or jax.vmap know nothing of it. So it is in a program over several devices that the
compiler splits: it would bring all parts of an array together for a call that it cannot look into.

``benchmarks/kernels.py`` measures which operation is worth a call; docs/cpu_kernels.md has its table.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from torch_xla._engine.base import partitioning

#: What the names of the handlers begin with in a program.
PREFIX = "torch_xla_"

#: Fewer numbers than these are not worth a call that makes buffers of them.
_LEAST_NUMBERS = 4
#: So many a call makes: each element of a tuple costs the compiler what the tuple is long.
_MOST_RESULTS = 256

Default = Callable[..., Sequence[jax.Array]]


@dataclass(frozen=True, slots=True, eq=False)
class _KernelCall:
    op: str
    default: Default
    attributes: dict[str, Any]
    kernel: bool = True  # counted
    strided: bool = False  # given operands from before their last transpose
    default_only: int = 0  # so many of the last operands are read by the default alone
    in_place: tuple[tuple[int, int], ...] = ()  # (operand, result): the result is in the operand's buffer


_called: ContextVar[Counter[str] | None] = ContextVar("called", default=None)
#: Whether it is not None, for jax: what it has traced or lowered in a block is not used outside, nor the reverse.
_allowed: Any = jax.make_user_context(default_value=False)


@contextmanager
def cpu_kernels_enabled(allowed: bool = True) -> Iterator[Counter[str]]:
    """Programs lowered in the block, by this thread, may call handlers; which they do is counted by name."""
    called: Counter[str] = Counter()
    token = _called.set(called if allowed else None)
    try:
        with _allowed(allowed):
            yield called
    finally:
        _called.reset(token)


def cpu_kernels_allowed() -> bool:
    """Whether programs that this thread lowers now may call handlers."""
    return _called.get() is not None


def is_profitable(work: int, least: int) -> bool:
    """Whether programs that this thread lowers now call a handler for so much work; less is not worth a call."""
    return cpu_kernels_allowed() and work >= least


def all_float32(*arrays: jax.Array) -> bool:
    """Whether all are, in which most of ATen's kernels are fast on every machine."""
    return all(x.dtype == np.float32 for x in arrays)


def all_bfloat16(*arrays: jax.Array) -> bool:
    """Whether all are, on a machine where oneDNN has kernels for it: elsewhere ATen is as slow as XLA, or slower."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability() and all(x.dtype == jnp.bfloat16 for x in arrays)


def cpu_kernel_call(
    op: str, default: Default, arrays: Sequence[jax.Array], outs: Sequence[Any],
    default_only: Sequence[jax.Array] = (), **attributes: Any,
) -> Any:  # fmt: skip
    """The list of results of ``default(*arrays, *default_only)``, whose shapes and dtypes ``outs`` tells.

    ``default_only`` are arrays that the handler does not read. ``attributes`` are what the handler reads by name: bool,
    int, float, or a sequence of int. Raises TypeError for a default that closes over an array.
    """
    made = _KernelCall(op, default, attributes, strided=True, default_only=len(default_only))
    return _bind(made, [*arrays, *default_only], outs)


def cpu_kernel_call_in_place(
    op: str, default: Default, arrays: Sequence[jax.Array], outs: Sequence[Any], in_place: dict[int, int],
    **attributes: Any,
) -> Any:  # fmt: skip
    """The same of a handler that reads dense arrays; ``in_place``: operands that it writes results over, by place.

    The compiler copies such an operand where it is needed later. Raises TypeError for a default that closes over an
    array.
    """
    return _bind(_KernelCall(op, default, attributes, in_place=tuple(in_place.items())), arrays, outs)


def unpack_scalars(numbers: Sequence[jax.Array] | jax.Array) -> Sequence[jax.Array] | jax.Array:
    """The 64-bit numbers that a program takes packed in an array, for use as scalars, by their place.

    Where there are many, each is a buffer of its own. XLA compiles kernels that do the same only once, as those for two
    parameters of an optimizer do: but not where each has a slice of the array fused into it, at another place. Numbers
    that are known while a program is traced stay known to the compiler.
    """
    if not isinstance(numbers, Tracer) or not is_profitable(len(numbers), _LEAST_NUMBERS):
        return numbers
    found: list[jax.Array] = []
    for first in range(0, len(numbers), _MOST_RESULTS):
        last = min(first + _MOST_RESULTS, len(numbers))
        outs = [jax.ShapeDtypeStruct((), numbers.dtype)] * (last - first)
        call = _KernelCall("unpack", lambda packed, first=first, last=last: [packed[i] for i in range(first, last)],
                     {"first": first}, kernel=False)  # fmt: skip
        found += _bind(call, [numbers], outs)
    return found


def materialize(x: jax.Array, after: Sequence[jax.Array] = ()) -> jax.Array:
    """``x``, as a value that the compiler writes to memory: it does not compute it again wherever it is needed.

    What reads it runs later than what computes ``after``.

    A call that does nothing: its result is in the operand's buffer. (XLA's CPU compiler drops optimization barriers
    before it fuses.)
    """
    return (
        _bind(_KernelCall("written", _identity, {}, kernel=False, in_place=((0, 0),)), [x, *after], [x])[0]
        if cpu_kernels_allowed()
        else x
    )


def _identity(x: jax.Array, *_: jax.Array) -> list[jax.Array]:
    return [x]


def _bind(call: _KernelCall, arrays: Sequence[jax.Array], outs: Sequence[Any]) -> Any:
    _check_captures(call)
    avals = tuple((tuple(out.shape), np.dtype(out.dtype)) for out in outs)
    return _call_p.bind(*arrays, call=call, avals=avals)


def _check_captures(call: _KernelCall) -> None:
    """Raises TypeError where the default closes over an array.

    The default is traced again when the call is lowered, mapped or differentiated; a tracer of the trace that bound the
    call is a leak by then, and fails far from here, only where the call is not lowered to its handler.
    """
    names = [name for name, value in _captures(call.default) if _holds_array(value, set())]
    if names:
        raise TypeError(
            f"on_cpu.call of {call.op!r}: the default closes over arrays ({', '.join(names)}), which it cannot read "
            "when it is traced again. Pass them as operands, or as default_only if the handler does not read them"
        )


def _captures(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function reads besides its arguments and globals, by name."""
    if isinstance(function, functools.partial):
        yield from _captures(function.func)
        yield from ((f"argument {i}", value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
        return
    if isinstance(function, MethodType):
        yield "self", function.__self__
        function = function.__func__
    if isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not yet assigned
                yield name, cell.cell_contents
        yield from ((f"default {i}", value) for i, value in enumerate(function.__defaults__ or ()))
        yield from (function.__kwdefaults__ or {}).items()


def _holds_array(value: Any, seen: set[int]) -> bool:
    """Whether it is an array or leads to one: in containers, dataclasses and functions."""
    if isinstance(value, jax.Array):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, each.name, None) for each in fields(value)]
    else:
        inner = [captured for _, captured in _captures(value)]
    return any(_holds_array(each, seen) for each in inner)


_call_p = Primitive("torch_xla_on_cpu")
_call_p.multiple_results = True


def _abstract(*_: Any, call: _KernelCall, avals: Any) -> list[ShapedArray]:
    return [ShapedArray(shape, dtype) for shape, dtype in avals]


def _impl_rule(*args: Any, call: _KernelCall, avals: Any) -> Any:
    return list(call.default(*args))


def _batch_rule(args: Sequence[Any], axes: Sequence[Any], *, call: _KernelCall, avals: Any) -> tuple[Any, list[int]]:
    results = jax.vmap(call.default, tuple(axes))(*args)
    return results, [0] * len(results)


def _jvp_rule(primals: Sequence[Any], tangents: Sequence[Any], *, call: _KernelCall, avals: Any) -> tuple[Any, Any]:
    found = jax.jvp(lambda *xs: list(call.default(*xs)), tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
    return found[0], found[1]


def _lower_default(ctx: mlir.LoweringRuleContext, *args: Any, call: _KernelCall, avals: Any) -> Any:
    return mlir.lower_fun(call.default, multiple_results=True)(ctx, *args)


def _lower_cpu(ctx: mlir.LoweringRuleContext, *args: Any, call: _KernelCall, avals: Any) -> Any:
    called = _called.get()
    if called is None or partitioning.is_auto_partitioned(ctx):
        return _lower_default(ctx, *args, call=call, avals=avals)
    attributes = {name: _attribute(value) for name, value in call.attributes.items()}
    lower = jax.ffi.ffi_lowering(PREFIX + call.op, operand_output_aliases=dict(call.in_place) or None)
    called[call.op] += call.kernel
    if not call.strided:
        return lower(ctx, *args, **attributes)
    operands, read = [], len(args) - call.default_only
    for i, arg in enumerate(args[:read]):
        operand, order = _before_transpose(arg)
        operands.append(operand)
        if order is not None:
            attributes[f"permuted{i}"] = np.array(order, np.int64)
    return lower(ctx.replace(avals_in=ctx.avals_in[:read]), *operands, **attributes)


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else np.array(value, np.int64)


def _before_transpose(operand: Any) -> tuple[Any, list[int] | None]:
    """The value that ``operand`` transposes, and the order of its dimensions; (operand, None) for another value.

    ATen's kernels read strided operands. XLA would write the transposed one to memory first: its layout is fixed.
    """
    maker = operand.owner
    if getattr(maker, "name", "") != "stablehlo.transpose":
        return operand, None
    return maker.operands[0], [int(dim) for dim in maker.attributes["permutation"]]


_call_p.def_abstract_eval(_abstract)
_call_p.def_impl(_impl_rule)
batching.primitive_batchers[_call_p] = _batch_rule
ad.primitive_jvps[_call_p] = _jvp_rule
mlir.register_lowering(_call_p, _lower_default)
mlir.register_lowering(_call_p, _lower_cpu, platform="cpu")
