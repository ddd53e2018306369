"""Replaces the shardings in a traced program, at any depth, so that it can be compiled for other devices.

jax functions inside a graph, such as loops over layers, were traced when they were recorded. Their sharding constraints
refer to the devices of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jax_core
from jax.sharding import Mesh, NamedSharding, Sharding


def retarget_jaxpr(traced: jax.stages.Traced, place: Callable[[Sharding], Sharding]) -> jax_core.ClosedJaxpr | None:
    """Return the program with ``place(sharding)`` in place of each sharding; None if nothing changes."""
    found: jax_core.ClosedJaxpr = _Retargeter(place).closed(traced.jaxpr)
    return None if found is traced.jaxpr else found


class _Retargeter:
    """Rewrites a jaxpr recursively. Parts without shardings remain the same objects, which jax lowers only once."""

    def __init__(self, place: Callable[[Sharding], Sharding]) -> None:
        self._place = place
        self._known: dict[int, tuple[Any, Any]] = {}  # by id; holding the key object prevents reuse of its id

    def closed(self, closed: Any) -> Any:
        jaxpr = self._once(closed.jaxpr)
        return closed if jaxpr is closed.jaxpr else jax_core.ClosedJaxpr(jaxpr, closed.consts)

    def _once(self, jaxpr: Any) -> Any:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._jaxpr(jaxpr)
        return self._known[id(jaxpr)][1]

    def _jaxpr(self, jaxpr: Any) -> Any:
        eqns = [self._eqn(eqn) for eqn in jaxpr.eqns]
        same = all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True))
        return jaxpr if same else jaxpr.replace(eqns=eqns)

    def _eqn(self, eqn: Any) -> Any:
        params = {name: self._param(value) for name, value in eqn.params.items()}
        same = all(params[name] is value for name, value in eqn.params.items())
        return eqn if same else eqn.replace(params=params)

    def _param(self, value: Any) -> Any:
        if isinstance(value, NamedSharding) and isinstance(value.mesh, Mesh):
            return self._place(value)
        if isinstance(value, jax_core.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, jax_core.Jaxpr):
            return self._once(value)
        if type(value) in (tuple, list):
            parts = [self._param(part) for part in value]
            same = all(new is old for new, old in zip(parts, value, strict=True))
            return value if same else type(value)(parts)
        return value
