"""Proposes meshes and remat policies: hill climbing from fully sharded data parallelism, for each target.

start     1xNx1 without and with recomputation: data x fsdp x tensor over all N chips
move      a prime factor of one axis of the best mesh to another axis, with recomputation only if it does not fit
end       no neighbor is better, or the limit is reached
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch_xla.cli.plan import summary
from torch_xla.cli.plan.variations import Combination

Mesh = tuple[int, ...]
#: Number of axes of a mesh: data, fsdp and tensor.
AXES = 3


def search(
    compile_: Callable[[Sequence[Combination]], None],
    results: Mapping[Combination, Mapping[str, Any]],
    seeds: Sequence[Combination],
    limit: int,
) -> None:
    """Search meshes and remat policies around each of ``seeds``, which fix the other options.

    Args:
      compile_: compiles combinations, and adds them to ``results``.
      results: the results by combination.
      seeds: a target and values of other options each.
      limit: the number of combinations for each seed after which no others are proposed.
    """
    climbers = [_Climber(seed, limit) for seed in seeds]
    while proposals := [combination for climber in climbers for combination in climber.propose(results)]:
        compile_(proposals)


class _Climber:
    """Climbs from one seed. It owns the combinations that it has proposed; ``propose`` adds to them until it ends."""

    def __init__(self, seed: Combination, limit: int) -> None:
        self._seed, self._limit = seed, limit
        self._proposed: dict[tuple[Mesh, bool], Combination] = {}
        self._expanded: set[Mesh] = set()

    def propose(self, results: Mapping[Combination, Mapping[str, Any]]) -> list[Combination]:
        """Return the combinations to compile next; empty at the end."""
        rows = {key: self._row(combination, results) for key, combination in self._proposed.items()}
        if not rows:
            start = (1, chip_count(self._seed.target), 1)
            return self._add([(start, False), (start, True)])
        too_large = [mesh for (mesh, remat), row in rows.items() if not remat and row["result"] == summary.DOES_NOT_FIT]
        if found := self._add([(mesh, True) for mesh in too_large]):
            return found
        best = self._best_mesh(rows)
        if best in self._expanded:
            return []
        self._expanded.add(best)
        return self._add([(mesh, False) for mesh in neighbors(best)])

    @staticmethod
    def _row(combination: Combination, results: Mapping[Combination, Mapping[str, Any]]) -> dict[str, Any]:
        return summary.make_row(combination, results[combination], None, {})

    @staticmethod
    def _best_mesh(rows: Mapping[tuple[Mesh, bool], Mapping[str, Any]]) -> Mesh:
        """Return the mesh of the fastest row that fits; the first one if none fits."""
        times = {key: row["seconds"] for key, row in rows.items() if row["result"] == summary.FITS}
        return min(times or rows, key=lambda key: times.get(key, 0.0))[0]

    def _add(self, candidates: Sequence[tuple[Mesh, bool]]) -> list[Combination]:
        added = []
        for mesh, remat in candidates:
            if (mesh, remat) in self._proposed or len(self._proposed) >= self._limit:
                continue
            combination = self._combination(mesh, remat)
            self._proposed[mesh, remat] = combination
            added.append(combination)
        return added

    def _combination(self, mesh: Mesh, remat: bool) -> Combination:
        values = (("mesh", "x".join(map(str, mesh))), ("remat", "on" if remat else "off"))
        fixed = tuple(pair for pair in self._seed.values if pair[0] not in ("mesh", "remat"))
        return Combination(self._seed.target, values + fixed)


def chip_count(target: str) -> int:
    """Return the number of chips of a target by its name."""
    return math.prod(int(size) for size in (target.partition(":")[2] or "1").split("x"))


def neighbors(mesh: Mesh) -> Iterator[Mesh]:
    """Yield the meshes with a prime factor of one axis moved to another, the same number of devices each."""
    for source, destination in itertools.permutations(range(len(mesh)), 2):
        for factor in _prime_factors(mesh[source]):
            moved = list(mesh)
            moved[source] //= factor
            moved[destination] *= factor
            yield tuple(moved)


def _prime_factors(number: int) -> list[int]:
    """Return the distinct prime factors of a number."""
    return [n for n in range(2, number + 1) if number % n == 0 and all(n % k for k in range(2, math.isqrt(n) + 1))]
