"""Call jax functions on xla tensors: trace once for each signature, then record each call as one node.

signature: function, pytree, constants, shapes and dtypes ──cached──► JaxCall ──► torch_xla::jax_call
                     └──new──► trace ──► lower ──► digest, callbacks ──► number (lowering/rules/jax_call.py)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jax_core
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.base.settings import settings
from torch_xla._engine.capture import object_keys
from torch_xla._engine.capture.callback_keys import CALLBACK_BYTES, callback_key, is_ordered
from torch_xla._engine.capture.constant_keys import constant_keys, copy_constants, count_bytes
from torch_xla._engine.capture.object_keys import identity
from torch_xla._engine.compat import dynamo
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.rules import jax_call
from torch_xla._engine.lowering.rules.jax_call import RegisteredFunction

_op = None  # torch.ops.torch_xla.jax_call.default, once it is defined


@dataclass(frozen=True, slots=True, eq=False)
class JaxCall:
    """A registered function that can be recorded by its number; ``tree`` is the pytree structure of its results."""

    function: RegisteredFunction
    number: int
    tree: Any
    key: Hashable  # of the function in the registry

    @property
    def bytes(self) -> int:
        """Bytes of the constants that it holds."""
        return self.function.bytes

    def note_use(self, device: int) -> None:
        """Keep the function registered while a call of it may be pending on the device."""
        jax_call.note_use(self.number, self.key, self.function, device)

    def note_plan(self, plan: object) -> None:
        """Keep the function registered while ``plan`` is alive or a call that it recorded is pending."""
        jax_call.note_plan(self.number, self.key, self.function, plan)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Flattened arguments: their pytree structure, the tensor leaves, and the other leaves, which are constants."""

    tree: Any
    positions: tuple[int, ...]  # of the tensors among the leaves
    constants: tuple[Any, ...]
    key: Hashable
    tensors: list[torch.Tensor]

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``args, kwargs`` with ``arrays`` in place of the tensors."""
        rest, given = iter(self.constants), iter(arrays)
        positions = set(self.positions)
        count = len(self.positions) + len(self.constants)
        leaves = [next(given) if position in positions else next(rest) for position in range(count)]
        found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.unflatten(self.tree, leaves)
        return found


def flatten_arguments(what: str, args: Sequence[Any], kwargs: dict[str, Any] | None) -> CallArguments:
    """Flatten the arguments of a call of ``what``.

    Raises:
      TypeError: A tensor is not on xla, or a leaf has no hash.
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    tensors, positions, constants = [], [], []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            _check_device(what, leaf)
            tensors.append(leaf)
            positions.append(position)
        else:
            constants.append(leaf)
    where = tuple(positions)
    shapes = tuple((t.dtype, t.shape) for t in tensors)
    key = (tree, where, constant_keys(what, leaves, tree), shapes)
    return CallArguments(tree, where, tuple(constants), key, tensors)


def _check_device(what: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "xla":
        raise TypeError(
            f"{what}: expected xla tensors, got {tensor.dtype}{list(tensor.shape)} on {tensor.device}; move it with "
            '.to("xla"), or pass its value as a Python number'
        )


def shape_structs(tensors: Sequence[torch.Tensor]) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of tensors, for tracing with jax."""
    return [jax.ShapeDtypeStruct(tuple(t.shape), dtypes.numpy_dtype(t.dtype)) for t in tensors]


def function_name(function: Any) -> str:
    """Return the name of a function in graphs and programs."""
    return re.sub(r"\W+", "_", str(getattr(function, "__name__", type(function).__name__))).strip("_") or "function"


def trace_and_register(
    what: str, name: str, function: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct]
) -> JaxCall:
    """Trace ``function`` for arguments like ``structs`` and register it. It may return any pytree of arrays.

    Raises:
      ValueError: The function closes over a value of another trace.
      TypeError: A result has a dtype that torch does not have.
    """
    closed, tree = trace(what, function, structs)
    return register_call(what, name, jax_core.jaxpr_as_fun(closed), closed.out_avals, structs, tree)


def trace(
    what: str, function: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct]
) -> tuple[jax_core.ClosedJaxpr, Any]:
    """Return the jaxpr of a function, with closed-over values as host constants, and the structure of its results."""
    # The function may call ATen's kernels; the program that it becomes a part of decides whether it does.
    with (
        recorder.enable_x64(keep_promotion=True),
        dtypes.exact_dtypes(),
        cpu_kernel_call.cpu_kernels_enabled(_cpu_kernels_allowed()),
    ):
        try:
            traced = jax.jit(function).trace(*structs)
            closed = traced.jaxpr
            if len(closed.jaxpr.invars) != len(structs) or any(isinstance(c, jax.core.Tracer) for c in closed.consts):
                raise jax.errors.UnexpectedTracerError("it is an operand of the function, or a constant")
            closed = copy_constants(closed)
        except jax.errors.UnexpectedTracerError as error:
            raise ValueError(
                f"{what}: {function_name(function)} uses a value that belongs to another jax transformation, which is "
                "running or has ended; pass it as an argument"
            ) from error
        return closed, jax.tree.structure(traced.out_info)


def used_inputs(closed: jax_core.ClosedJaxpr, results: Sequence[Any] | None = None) -> list[bool]:
    """Return for each input whether a result depends on it.

    Nested functions are not analyzed: all their inputs count as used.

    Args:
      results: Variables of the jaxpr; None means all its outputs.
    """
    jaxpr = closed.jaxpr
    needed = {id(v) for v in (jaxpr.outvars if results is None else results)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in needed for v in equation.outvars):
            needed.update(id(v) for v in equation.invars)
    return [id(v) in needed for v in jaxpr.invars]


def register_call(
    what: str,
    name: str,
    function: Callable[..., Sequence[jax.Array]],
    results: Sequence[Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    tree: Any,
) -> JaxCall:
    """Register a flat function that returns arrays like ``results``, and return its JaxCall."""
    outs = tuple((tuple(r.shape), _dtype_of(what, name, i, r)) for i, r in enumerate(results))

    def called(*arrays: jax.Array) -> Sequence[jax.Array]:
        return function(*arrays)

    called.__name__ = called.__qualname__ = name
    jitted = jax.jit(called)
    with recorder.enable_x64(), dtypes.exact_dtypes():
        traced = jitted.trace(*structs)
        text = traced.lower(lowering_platforms=(_platform(),)).as_text()
    if is_ordered(text):
        raise NotImplementedError(
            f"{what}: {name} has ordered Python callbacks (ordered=True), which xla programs do not support; pass "
            "ordered=False"
        )
    digest = hashlib.sha256(f"{name}\n{outs}\n{text}".encode()).digest()
    callbacks = callback_key(traced.jaxpr, text)
    held = count_bytes(traced.jaxpr) + (0 if callbacks is None else CALLBACK_BYTES)
    made, key = RegisteredFunction(name, len(structs), jitted, outs, held), (digest, callbacks)
    return JaxCall(made, jax_call.register_function(key, made), tree, key)


def _cpu_kernels_allowed() -> bool:
    return settings.TORCH_XLA_CPU_KERNELS and capabilities.default_runs_in_process()


def _platform() -> str:
    return devices.lowering_platform(devices.devices()[0])


def _dtype_of(what: str, name: str, index: int, aval: Any) -> torch.dtype:
    try:
        return dtypes.torch_dtype(aval.dtype)
    except (KeyError, TypeError) as error:
        raise TypeError(
            f"{what}: result {index} of {name} is {aval.dtype}{list(aval.shape)}, a dtype that torch does not have; "
            "convert it in the function (jax.random.key_data, astype)"
        ) from error


def record_call(call: JaxCall, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Record a call as one node and return its results. Raises RuntimeError for tensors of several devices."""
    global _op
    if not call.function.outs:
        return []
    if _op is None:
        _op = torch.ops.torch_xla.jax_call.default
    if not tensors:
        # The device of a call is that of its first tensor.
        tensors = [torch.empty((0,), device="xla")]
    device = tensors[0].device.index
    # Another thread may evict the function and sync the device at any moment: note the use before and after.
    call.note_use(device)
    outs: list[torch.Tensor] = list(_op(tensors, call.number, call.function.name))
    call.note_use(device)
    return outs


_calls: LruCache[JaxCall] = LruCache(limit=lambda: 2048, weigh=lambda call: call.bytes)


def trace_config_key() -> Hashable:
    """Return the parts of jax's configuration that a trace depends on."""
    config: Any = jax.config
    context = dynamo.jax_trace_context()
    if context is None:
        context = config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion
    return config.jax_default_prng_impl, context  # jax's trace context does not include the PRNG implementation


def get_or_make(
    cache: LruCache[Any], key: Hashable, make: Callable[[], Any], numbers: Callable[[Any], Sequence[int]]
) -> Any:
    """Return the cached value of ``key``, or ``make()`` if it is missing or its functions are no longer registered."""
    found = cache.get(key)
    if found is None or (jax_call.forgotten and not all(map(jax_call.is_registered, numbers(found)))):
        found = make()
        object_keys.remove_dead(cache)
        cache.put(key, found)
    return found


def call_jax(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None,
    name: str | None,
    known_by: Hashable = None,
) -> Any:
    """See torch_xla.core.xla_builder.call_jax."""
    signature = flatten_arguments("call_jax", args, kwargs)
    label = function_name(function) if name is None else re.sub(r"\W+", "_", name)

    def flat(*arrays: jax.Array) -> Any:
        positional, named = signature.arguments(arrays)
        return function(*positional, **named)

    flat.__name__ = label
    who = identity(function) if known_by is None else ("known by", known_by)
    key = (who, label, trace_config_key(), signature.key)
    make = lambda: trace_and_register("call_jax", label, flat, shape_structs(signature.tensors))
    found: JaxCall = get_or_make(_calls, key, make, lambda c: (c.number,))
    with torch.no_grad():
        return jax.tree.unflatten(found.tree, record_call(found, signature.tensors))
