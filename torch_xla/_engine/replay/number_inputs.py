"""Which numbers of a program are inputs, found by comparing two recordings of the same graph.

A *source* is a float that can be read again before each replay: an item of a parameter group, a float argument, or a
scalar of optimizer state on the CPU, such as the step count. Each number of the graph is one of these:

    in both recordings   expressions that give both values   becomes
    equal                none of a source that changes       a constant; the sources that have not changed are guarded
    equal                of a source that changes            a constant that these must agree with at each replay
    different            one or more                         an input; all of them must agree at each replay
    different            none                                no replay: the line is named

The numbers 0, 1 and -1 are part of the graph. An expression that gives one of them must give it at each replay.
Step counts that were equal in both recordings are read as one number, and must stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_xla._engine.replay.traced_number import Expression, NumberTrace, bits, compile_function, render, sources_of


@dataclass(frozen=True)
class NumberInputs:
    """The numbers to compute before a launch.

    Attributes:
      varying: the sources that they depend on; index i of ``s`` in the compiled functions is source i.
      positions: of each number, its position among the graph's floats.
      evaluate: ``s`` -> for each number, the values of its expressions.
      conditions: ``s`` -> whether the step would branch as it did.
    """

    varying: tuple[Hashable, ...]
    positions: tuple[int, ...]
    evaluate: Callable[[Any], Sequence[tuple[float, ...]]]
    conditions: Callable[[Any], bool]

    def compute(self, values: list[float]) -> list[tuple[int, float]] | None:
        """Return (position, number) of each input; None if the step would record another graph, or is ambiguous."""
        try:
            if not self.conditions(values):
                return None
            found = []
            for position, candidates in zip(self.positions, self.evaluate(values), strict=True):
                first = candidates[0]
                if type(first) is not float or any(bits(other) != bits(first) for other in candidates[1:]):
                    return None
                found.append((position, first))
            return found
        except (ArithmeticError, TypeError, ValueError):  # the step would raise it as well, at its line
            return None


class Converted(Exception):
    """A number that changes is converted in a way that no expression describes. ``line``: where."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class Unexplained(Exception):
    """A number of the graph differs between the recordings and has no expression. ``position``: among the floats."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def find_inputs(
    old: Sequence[float],
    new: Sequence[float],
    traces: tuple[NumberTrace, NumberTrace],
    merged: Mapping[Hashable, Hashable],
    always: frozenset[Hashable],
) -> NumberInputs:
    """Compare the floats of two recordings. Raises Unexplained or Converted.

    Args:
      merged: source -> the source that is read for it; the sources that are read on their own may be missing.
      always: sources that change with each step, and are inputs of conditions even if no number needs them.
    """
    before, now = traces
    changed = {s for s in now.sources if bits(now.sources[s]) != bits(before.sources.get(s, float("nan")))}
    varying_sources = changed | always
    for expression, line in now.conversions.items():
        if sources_of(expression) & varying_sources:
            raise Converted(line)

    def code_in(trace: NumberTrace, names: dict[Hashable, int] | None) -> Callable[[Hashable], str]:
        def code(source: Hashable) -> str:
            if source not in varying_sources:
                return repr(trace.sources[source])
            source = merged.get(source, source)
            return f"s[{source!r}]" if names is None else f"s[{names.setdefault(source, len(names))}]"

        return code

    positions, chosen = [], []
    for position, (a, b) in enumerate(zip(old, new, strict=True)):
        in_old = {render(e, code_in(before, None)) for e in before.expressions.get(bits(a), ())}
        in_new = {render(e, code_in(now, None)): e for e in now.expressions.get(bits(b), ())}
        common = [expression for text, expression in in_new.items() if text in in_old]
        if bits(a) == bits(b):
            common = [expression for expression in common if sources_of(expression) & varying_sources]
            if common:  # a saturated bias correction, or a coincidence
                common.insert(0, ("constant", b))
        elif not common:
            raise Unexplained(position)
        if common:
            positions.append(position)
            chosen.append(common)
    names: dict[Hashable, int] = {}
    code = code_in(now, names)
    numbers = ["(" + "".join(f"{text}, " for text in _distinct(candidates, code)) + ")" for candidates in chosen]
    conditions = [*_conditions(now, varying_sources, code), *_baked_conditions(now, varying_sources, code)]
    return NumberInputs(
        tuple(names),
        tuple(positions),
        compile_function("(" + "".join(f"{number}, " for number in numbers) + ")"),
        compile_function(" and ".join(conditions) or "True"),
    )


def _distinct(candidates: Sequence[Expression], code: Callable[[Hashable], str]) -> list[str]:
    return list(dict.fromkeys(render(expression, code) for expression in candidates))


#: Numbers that are part of a graph, rather than inputs of its program.
_BAKED = (0.0, -0.0, 1.0, -1.0)


def _baked_conditions(
    trace: NumberTrace, varying: set[Hashable] | frozenset[Hashable], code: Callable[[Hashable], str]
) -> list[str]:
    found: dict[str, None] = {}
    for value in _BAKED:
        for expression in trace.expressions.get(bits(value), ()):
            if sources_of(expression) & varying:
                found[f"({render(expression, code)} == {value!r})"] = None
    return list(found)


def _conditions(
    trace: NumberTrace, varying: set[Hashable] | frozenset[Hashable], code: Callable[[Hashable], str]
) -> list[str]:
    found: dict[str, None] = {}
    for symbol, left, right, outcome in trace.conditions:
        if (sources_of(left) | sources_of(right)) & varying:
            text = f"({render(left, code)} {symbol} {render(right, code)})"
            found[text if outcome else f"(not {text})"] = None
    return list(found)
