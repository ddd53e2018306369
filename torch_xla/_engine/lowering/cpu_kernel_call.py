"""Calls ATen's kernels from CPU programs where they are faster than XLA's code for the same operation.

    cpu_kernel_call("convolution", default, (x, weight), outs, groups=1, ...)

computes the same as ``default(x, weight)``:

    lowered within cpu_kernels_enabled(), for a CPU             a custom call of that CPU kernel (cpu_backend/csrc)
    lowered for other platforms, exported; jax.grad, jax.vmap   the default
    in a program that XLA partitions over several devices       the default: XLA cannot partition a custom call, and
                                                                would all-gather its operands

``benchmarks/kernels.py`` measures which operations are worth a call; docs/project/cpu_kernels.md has the table.
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

#: Prefix of the names of CPU kernels (custom call targets) in a program.
PREFIX = "torch_xla_"

#: Minimum number of scalars for which a call that unpacks them into buffers is profitable.
_LEAST_NUMBERS = 4
#: Maximum number of results of one call: the compile time per tuple element is proportional to the tuple's length.
_MOST_RESULTS = 256

Default = Callable[..., Sequence[jax.Array]]


@dataclass(frozen=True, slots=True, eq=False)
class _KernelCall:
    op: str
    default: Default
    attributes: dict[str, Any]
    kernel: bool = True  # whether the call is counted
    strided: bool = False  # whether the kernel reads strided operands, from before their last transpose
    default_only: int = 0  # number of trailing operands that only the default reads
    in_place: tuple[tuple[int, int], ...] = ()  # (operand, result) pairs that share a buffer


_called: ContextVar[Counter[str] | None] = ContextVar("called", default=None)
#: Whether ``_called`` is set, as part of jax's trace context: jax then shares no cached trace or lowering between code
#: inside and outside of a ``cpu_kernels_enabled`` block.
_allowed: Any = jax.make_user_context(default_value=False)


@contextmanager
def cpu_kernels_enabled(allowed: bool = True) -> Iterator[Counter[str]]:
    """Let programs lowered by this thread within the block call CPU kernels; yield the number of calls by name."""
    called: Counter[str] = Counter()
    token = _called.set(called if allowed else None)
    try:
        with _allowed(allowed):
            yield called
    finally:
        _called.reset(token)


def cpu_kernels_allowed() -> bool:
    """Return whether programs that this thread lowers now may call CPU kernels."""
    return _called.get() is not None


def is_profitable(work: int, least: int) -> bool:
    """Return whether programs lowered now may call CPU kernels, and ``work`` is at least ``least``."""
    return cpu_kernels_allowed() and work >= least


def all_float32(*arrays: jax.Array) -> bool:
    """Return whether all arrays are float32, for which most of ATen's kernels are fast on every machine."""
    return all(x.dtype == np.float32 for x in arrays)


def all_bfloat16(*arrays: jax.Array) -> bool:
    """Return whether all arrays are bfloat16 and oneDNN has bfloat16 kernels for this CPU (AVX-512).

    On other CPUs ATen is as slow as XLA, or slower.
    """
    return "AVX512" in torch.backends.cpu.get_cpu_capability() and all(x.dtype == jnp.bfloat16 for x in arrays)


def cpu_kernel_call(
    op: str, default: Default, arrays: Sequence[jax.Array], outs: Sequence[Any],
    default_only: Sequence[jax.Array] = (), **attributes: Any,
) -> Any:  # fmt: skip
    """Return the results of ``default(*arrays, *default_only)`` as a list, computed by a CPU kernel where possible.

    Args:
      op: name of the CPU kernel.
      default: XLA's lowering of the same operation; it must not close over arrays.
      outs: shape and dtype of each result.
      default_only: operands that only the default reads.
      attributes: attributes of the kernel by name: bool, int, float, or a sequence of int.

    Raises:
      TypeError: ``default`` closes over an array.
    """
    call = _KernelCall(op, default, attributes, strided=True, default_only=len(default_only))
    return _bind(call, [*arrays, *default_only], outs)


def cpu_kernel_call_in_place(
    op: str, default: Default, arrays: Sequence[jax.Array], outs: Sequence[Any], in_place: dict[int, int],
    **attributes: Any,
) -> Any:  # fmt: skip
    """Call a CPU kernel that reads dense arrays and may write results into the buffers of its operands.

    Args:
      in_place: operand index -> index of the result that overwrites it. The compiler copies the operand first if it is
        read later.

    The other arguments and errors are those of ``cpu_kernel_call``.
    """
    return _bind(_KernelCall(op, default, attributes, in_place=tuple(in_place.items())), arrays, outs)


def unpack_scalars(numbers: Sequence[jax.Array] | jax.Array) -> Sequence[jax.Array] | jax.Array:
    """Unpack the 64-bit scalars that a program takes packed in one array.

    If there are many, each scalar gets a separate buffer. XLA compiles identical kernels only once, such as the updates
    of two parameters by an optimizer, but they are not identical if each has a slice of the array fused into it, at
    another offset. Scalars that are constants during tracing remain constants for the compiler.
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
    """Return ``x`` as a value that the compiler writes to memory instead of recomputing it in every consumer.

    Consumers of the result run after ``after`` is computed.

    The call has no effect at run time, and its result aliases the operand. An optimization barrier would not do: XLA's
    CPU compiler drops barriers before it fuses.
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
    """Raise TypeError if the default closes over an array.

    The default is traced again when the call is lowered, batched or differentiated. A captured tracer of the trace that
    bound the call has leaked by then, and fails far from here, only if the call is not lowered to its CPU kernel.
    """
    names = [name for name, value in _captures(call.default) if _holds_array(value, set())]
    if names:
        raise TypeError(
            f"cpu_kernel_call of {call.op!r}: the default closes over arrays ({', '.join(names)}), which it cannot "
            "read when it is traced again. Pass them as operands, or as default_only if the kernel does not read them"
        )


def _captures(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function captures, by name: cells of its closure, defaults, bound arguments."""
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
    """Return whether ``value`` is or references an array, through containers, dataclasses and functions."""
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
    """Return the operand and the permutation of the transpose that produces ``operand``, else (``operand``, None).

    ATen's kernels read strided operands. A custom call has a fixed operand layout, so that XLA would first write the
    transposed value to memory.
    """
    transpose = operand.owner
    if getattr(transpose, "name", "") != "stablehlo.transpose":
        return operand, None
    return transpose.operands[0], [int(dim) for dim in transpose.attributes["permutation"]]


_call_p.def_abstract_eval(_abstract)
_call_p.def_impl(_impl_rule)
batching.primitive_batchers[_call_p] = _batch_rule
ad.primitive_jvps[_call_p] = _jvp_rule
# Not cacheable: jax lowers a cacheable primitive as a function, where operands are parameters, not transposes.
mlir.register_lowering(_call_p, _lower_default, cacheable=False)
mlir.register_lowering(_call_p, _lower_cpu, platform="cpu", cacheable=False)
