"""Sums the estimated cost of a program's operations by ``torch.nn`` module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BACKWARD = "backward"
#: Share of a program's time below which a module is not listed.
_WORTH_NAMING = 0.01


@dataclass(slots=True)
class ModuleCost:
    """The estimated cost of one run of a module, its submodules and its backward pass included.

    Attributes:
      module: path of the module, ``Net/layers/0``; empty: operations outside of modules (loss, optimizer, copies).
      seconds: estimated time.
      backward: part of ``seconds`` in the backward pass.
      flops: floating point operations.
      bytes: HBM traffic.
    """

    module: str
    seconds: float = 0.0
    backward: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


def module_path(scope: str) -> tuple[str, bool]:
    """Return the module path of an operation's scope, and whether it belongs to the backward pass.

    ``backward/Net/fc/aten::mm`` -> ``("Net/fc", True)``; a scope without an operator has no module.
    """
    *path, operator = scope.split("/")
    if "::" not in operator:
        return "", False
    is_backward = path[:1] == [_BACKWARD]
    return "/".join(path[is_backward:]), is_backward


def summarize_modules(operations: Iterable[tuple[str, float, float, float]]) -> tuple[ModuleCost, ...]:
    """Return the cost of each module before those of its submodules; siblings and the rest by decreasing time.

    Modules of less than one percent of the time are left out.

    Args:
      operations: scope, seconds, FLOPs and bytes of each operation, for all its executions.
    """
    found: dict[str, ModuleCost] = {}
    total = 0.0
    for scope, seconds, flops, size in operations:
        path, is_backward = module_path(scope)
        total += seconds
        for name in _ancestors(path):
            row = found.setdefault(name, ModuleCost(name))
            row.seconds += seconds
            row.backward += seconds * is_backward
            row.flops += flops
            row.bytes += size
    if set(found) <= {""}:
        return ()
    listed = [row for row in found.values() if row.seconds and row.seconds >= _WORTH_NAMING * total]
    return tuple(_in_tree_order(listed))


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _in_tree_order(rows: Sequence[ModuleCost]) -> list[ModuleCost]:
    seconds = {row.module: row.seconds for row in rows}

    def key(row: ModuleCost) -> list[tuple[float, str]]:
        return [(-seconds.get(name, 0.0), name) for name in _ancestors(row.module)]

    return sorted(rows, key=key)
