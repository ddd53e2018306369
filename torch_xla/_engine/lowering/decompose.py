"""Lowers ops that have no rule through torch's decomposition, which is traced into ops that have rules."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.lowering import RULES, fx_interpreter
from torch_xla._engine.lowering.registry import Rule, ScalarOperand, default_dtype


@functools.cache
def decomposition_table() -> dict[str, Callable[..., Any]]:
    """Return torch's decompositions of the functional ATen ops that have no rule, by qualified name."""
    found = {}
    for overload, rule in dispatcher.decompositions().items():
        schema = dispatcher.schema_or_none(overload)
        if schema is None or not _is_functional(schema):
            continue
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if name.startswith("aten::") and name not in RULES and not _has_default_kernel(name):
            found[name] = rule
    return found


def _has_default_kernel(name: str) -> bool:
    # torch's C++ kernel decomposes such an op while it is recorded.
    keys = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(dispatcher.has_kernel(name, key) for key in keys)


def _is_functional(schema: Any) -> bool:
    tensors = all("Tensor" in str(r.type) for r in schema.returns)
    return tensors and bool(schema.returns) and all(a.alias_info is None for a in schema.arguments)


def overload(name: str) -> Any:
    """Return the ``torch.ops`` object of a qualified name such as ``aten::add.Tensor``."""
    namespace, rest = name.split("::")
    packet, _, suffix = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), suffix or "default")


def decomposition_rule(name: str) -> Callable[..., Any]:
    """Return a rule that lowers an op through its decomposition. Raises LookupError if torch has none."""
    if name not in decomposition_table():
        raise LookupError(f"no lowering rule and no decomposition in torch {torch.__version__}")
    return functools.partial(_run, name)


@functools.cache
def _tracer() -> ThreadPoolExecutor:
    # A separate thread: the caller may be inside the dispatcher, with dispatch keys excluded that tracing needs.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch_xla_decompose")


os.register_at_fork(after_in_child=_tracer.cache_clear)  # a forked child has none of its parent's threads


def _to_meta(arg: Any) -> Any:
    if isinstance(arg, jax.Array):
        return torch.empty(arg.shape, dtype=dtypes.torch_dtype_of_storage(arg.dtype), device="meta")
    return [_to_meta(a) for a in arg] if isinstance(arg, list) else arg


def _trace(name: str, args: list[Any]) -> torch.fx.GraphModule:
    op = overload(name)
    schema = dispatcher.schema(op).arguments
    metas = [_to_meta(a) for a in args]
    places = [i for i, a in enumerate(args) if isinstance(a, jax.Array)]
    lists = [i for i, a in enumerate(args) if isinstance(a, list) and any(isinstance(x, jax.Array) for x in a)]
    rules = {overload(n): f for n, f in decomposition_table().items()}

    def call(tensors: list[torch.Tensor], groups: list[list[torch.Tensor]]) -> Any:
        full = list(metas)
        for i, t in zip(places, tensors, strict=True):
            full[i] = t
        for i, g in zip(lists, groups, strict=True):
            full[i] = g
        positional = [v for a, v in zip(schema, full, strict=True) if not a.kwarg_only]
        keyword = {a.name: v for a, v in zip(schema, full, strict=True) if a.kwarg_only}
        return decomposition_table()[name](*positional, **keyword)

    functional = torch.func.functionalize(call, remove="mutations_and_views")
    now, then = torch.get_default_dtype(), default_dtype()
    try:
        # Process-wide, but only if the script changed the default between recording and running the op.
        if now != then:
            torch.set_default_dtype(then)
        return dispatcher.make_fx(functional, rules)([metas[i] for i in places], [metas[i] for i in lists])
    finally:
        if now != then:
            torch.set_default_dtype(now)


def _run(name: str, *args: Any) -> Any:
    if any(isinstance(a, ScalarOperand) for a in args):
        raise TypeError("a scalar argument of a decomposed op must be a constant of the graph")
    module = _tracer().submit(contextvars.copy_context().run, _trace, name, list(args)).result()
    inputs = [a for a in args if isinstance(a, jax.Array)]
    inputs += [x for a in args if isinstance(a, list) for x in a if isinstance(x, jax.Array)]
    return fx_interpreter.FxInterpreter(module, _rule)(inputs)


def _rule(name: str) -> Rule:
    if name not in RULES:
        raise LookupError(f"its decomposition uses {name}, which has no lowering rule")
    return RULES[name]
