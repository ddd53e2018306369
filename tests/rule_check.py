"""Runs one lowering rule against the same operator on the CPU, without the recorder.

    check("aten::add.Tensor", torch.ones(2), torch.ones(2), alpha=2)

Fills in the schema's defaults, makes non-baked Scalars program inputs (as the recorder does), jits, and compares.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.apply import apply
from torch_xla._engine.lowering.registry import Context, Number

_NUMERIC = ("number", "Optional[number]", "Tensor")
_WIDEST = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def overload(name: str) -> Any:
    namespace, rest = name.split("::")
    packet, _, ov = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), ov or "default")


def to_array(t: torch.Tensor) -> jax.Array:
    t = t.detach().contiguous().resolve_conj().resolve_neg()
    if t.dtype == torch.bfloat16:
        return jnp.asarray(t.view(torch.int16).numpy().view(dtypes.to_numpy(t.dtype)))
    return jnp.asarray(t.numpy())


def to_tensor(x: jax.Array) -> torch.Tensor:
    x = np.array(x)
    dtype = dtypes.to_torch(x.dtype)
    if dtype == torch.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(dtype)
    return torch.from_numpy(x)


def run(name: str, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
    """(expected from the CPU, got from the rule), both flat lists of tensors (or None)."""
    op, rule = overload(name), RULES[name]
    schema = op._schema
    full = []
    for i, a in enumerate(schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(a.name, a.default_value)
        full.append((a, value))
    clone = lambda v: v.clone() if isinstance(v, torch.Tensor) else [clone(w) for w in v] if isinstance(v, list) else v
    positional = [clone(v) for a, v in full if not a.kwarg_only]
    keyword = {a.name: clone(v) for a, v in full if a.kwarg_only}
    expected = flat(op(*positional, **keyword))
    leaves: list[Any] = []

    def spec(a: Any, v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            leaves.append(to_array(v))
            return ("leaf", len(leaves) - 1)
        if isinstance(v, (list, tuple)) and any(isinstance(w, torch.Tensor) for w in v):
            return ("list", [spec(a, w) for w in v])
        number = type(v) in (bool, int, float, complex)
        number = number and ("Scalar" in str(a.real_type) or str(a.real_type) in _NUMERIC)
        if number and a.name not in rule.bake and v not in (0, 1, -1):
            leaves.append(jnp.asarray(v, _WIDEST[type(v)]))
            return ("number", len(leaves) - 1, type(v))
        return ("const", v)

    specs = [spec(a, v) for a, v in full]
    outs = [(tuple(t.shape), t.dtype) if t is not None else ((), None) for t in expected]

    def program(*xs: jax.Array) -> Any:
        def build(s: Any) -> Any:
            if s[0] == "leaf":
                return xs[s[1]]
            if s[0] == "list":
                return [build(w) for w in s[1]]
            if s[0] == "number":
                return Number(xs[s[1]], s[2])
            return s[1]

        seed = jnp.array([1, 2], jnp.uint32) if rule.random else None
        return apply(rule, [build(s) for s in specs], outs, Context(name, outs, seed))

    got = jax.jit(program)(*leaves)
    return expected, [to_tensor(g) if g is not None else None for g in got]


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in flat(item)]
    return [result]


def check(name: str, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Raises AssertionError where the rule's values, dtypes or shapes differ from the CPU's."""
    with jax.enable_x64(True):
        expected, got = run(name, *args, **kwargs)
    for e, g in zip(expected, got, strict=True):
        if e is None or g is None:
            assert e is g or g is None, f"{name}: None mismatch"
            continue
        torch.testing.assert_close(
            g, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=False, msg=lambda m: f"{name}: {m}"
        )
