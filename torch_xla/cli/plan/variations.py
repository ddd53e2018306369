"""The combinations of a plan: each target with each combination of the values of the script's options."""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z][\w-]*")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ON, _OFF = "on", "off"


@dataclass(frozen=True, slots=True)
class Variation:
    """An option of the script and its values. ``on`` and ``off``: the option without a value, and no option."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """A target and the value of each varied option."""

    target: str
    values: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """The target and the values, for messages."""
        return " ".join([self.target, *(f"{name}={value}" for name, value in self.values)])

    def script_arguments(self, given: Sequence[str]) -> list[str]:
        """Return the arguments of the script: those given, then the varied options, of which argparse uses the last."""
        found = list(given)
        for name, value in self.values:
            if value != _OFF:
                found += [f"--{name}"] if value == _ON else [f"--{name}", value]
        return found


def parse_variation(text: str) -> Variation:
    """Parse ``mesh=1x4x1,2x2x1``. Raises argparse's error."""
    name, sign, values = text.partition("=")
    found = tuple(dict.fromkeys(value for value in values.split(",") if value))
    if not sign or not _NAME.fullmatch(name) or not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,VALUE,... such as batch_size=64,128")
    return Variation(name, found)


def make_grid(targets: Iterable[str], variations: Sequence[Variation]) -> list[Combination]:
    """Return every combination of a target and values, without duplicates."""
    names = [each.name for each in variations]
    products = itertools.product(targets, *(each.values for each in variations))
    return list(
        dict.fromkeys(Combination(target, tuple(zip(names, values, strict=True))) for target, *values in products)
    )


def parse_price(text: str) -> tuple[str, float]:
    """Parse ``v5e=1.20``: the chip of a target, or a target, and a price per chip and hour. Raises argparse's error."""
    target, _, price = text.partition("=")
    try:
        value = float(price)
    except ValueError:
        value = -1.0
    if not target or not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not TARGET=PRICE, the price of a chip for an hour")
    return target, value


def price_of(target: str, prices: Mapping[str, float]) -> float | None:
    """Return the price of a chip of a target: that of the target, else of its chip, else None."""
    return prices.get(target, prices.get(target.partition(":")[0]))


def evaluate_count(expression: str, arguments: Sequence[str]) -> float:
    """Evaluate ``batch_size*length`` with the values of the script's options; the last one of a name counts.

    Raises ValueError if an option has no numeric value in ``arguments``, or for other expressions.
    """
    names = _option_values(arguments)

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id=name):
                return _number(names, name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise ValueError(f"{expression!r}: expected numbers, names of options, and + - * / between them")

    try:
        found = value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise ValueError(f"{expression!r}: {error}") from error
    if found <= 0:
        raise ValueError(f"{expression!r} is {found:g}, not a positive number")
    return found


def _number(names: Mapping[str, str], name: str) -> float:
    if name not in names:
        raise ValueError(f"the script's arguments have no --{name}: give its value, or a number in the expression")
    try:
        return float(names[name])
    except ValueError:
        raise ValueError(f"--{name} {names[name]} is not a number") from None


def _option_values(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--name value`` and ``--name=value``, with ``-`` in names as ``_``."""
    found: dict[str, str] = {}
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if sign else following
    return found
