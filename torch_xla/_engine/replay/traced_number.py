"""Numbers that remember how a step computes them: the learning rate of a group, a step count, a float argument.

A TracedNumber is the float that the step sees while it is recorded. Arithmetic gives traced numbers, so a number of the
graph is found again as an expression of numbers that can be read before each replay. What cannot be an expression
becomes a condition of the replay:

    use in the step                           effect
    lr * 0.5, 1 - beta ** step                a TracedNumber, with its expression
    if step > 5, min(lr, x), if weight_decay  a condition: the comparison has the same outcome
    math.sqrt(step)                           a TracedNumber (number_calls.py)
    int(step), math.floor(lr), f"{lr}", hash  a condition: the number has the same value; if it has changed between the
    struct.pack("d", lr), Decimal(lr)         recordings, there is no replay, and the line is named
    torch.tensor(lr), on the CPU
    torch.tensor(lr, device="xla")            an input (number_reads.py)
    "%f" % lr, float.hex(lr), memoryview      not seen: C code reads the float, and nothing can be replaced
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_xla._engine.base import user_frames

#: A number's expression: ("source", name), ("constant", value), or (operator, operand, ...).
Expression = tuple[Any, ...]

_BINARY: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
}  # fmt: skip
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def bits(value: float) -> bytes:
    """Return a float's bytes, which are equal for equal NaNs and differ for 0.0 and -0.0."""
    return struct.pack("<d", value)


class NumberTrace:
    """The traced numbers of one recording, and the conditions that its code has evaluated.

    Owned by the recording. Sources are added before the step; expressions and conditions are added by it.
    """

    def __init__(self) -> None:
        self.sources: dict[Hashable, float] = {}
        self.expressions: dict[bytes, list[Expression]] = {}  # by the bits of the value
        self.conditions: dict[tuple[str, Expression, Expression, bool], None] = {}
        self.conversions: dict[Expression, str] = {}  # what only a condition can express -> the line of the first use

    def add_source(self, name: Hashable, value: float) -> TracedNumber:
        """Return the number of a source, which has this value in the recording."""
        self.sources[name] = value
        return self.make(value, ("source", name))

    def make(self, value: float, expression: Expression) -> TracedNumber:
        """Return a number with its expression."""
        found = float.__new__(TracedNumber, value)
        found.trace, found.expression = self, expression
        self.expressions.setdefault(bits(value), []).append(expression)
        return found

    def add_condition(self, symbol: str, left: Expression, right: Expression, outcome: bool) -> None:
        """Note a comparison of the step."""
        self.conditions[symbol, left, right, outcome] = None


def _expression_of(value: Any) -> Expression | None:
    if isinstance(value, TracedNumber):
        return value.expression
    return ("constant", value) if type(value) in (float, int, bool) else None


class TracedNumber(float):
    """A float with its expression."""

    trace: NumberTrace
    expression: Expression

    def __new__(cls, value: Any = 0.0) -> Any:
        """Return a plain float: libraries convert a result to the type of a number, as in type(n)(value)."""
        return float(value)

    def escape(self) -> float:
        """Return the plain value, which the step uses in a way that no expression describes."""
        value = float.__mul__(self, 1.0)
        self.trace.conversions.setdefault(self.expression, user_frames.user_line())
        self.trace.add_condition("==", self.expression, ("constant", value), True)
        return value

    def __bool__(self) -> bool:
        outcome = float.__bool__(self)
        self.trace.add_condition("!=", self.expression, ("constant", 0.0), outcome)
        return outcome

    def __neg__(self) -> float:
        return self.trace.make(float.__neg__(self), ("-", self.expression))

    def __pos__(self) -> float:
        return self

    def __abs__(self) -> float:
        return self.trace.make(float.__abs__(self), ("abs", self.expression))

    def __int__(self) -> int:
        return int(self.escape())

    __trunc__ = __int__

    def __floor__(self) -> int:
        return self.escape().__floor__()

    def __ceil__(self) -> int:
        return self.escape().__ceil__()

    def __round__(self, digits: Any = None) -> Any:
        return round(self.escape(), digits)

    def __float__(self) -> float:
        return self.escape()

    def __complex__(self) -> complex:
        return complex(self.escape())

    def __hash__(self) -> int:
        return hash(self.escape())

    def __repr__(self) -> str:
        return repr(self.escape())

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return format(self.escape(), form)

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.escape(), other)

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(other, self.escape())

    def __copy__(self) -> TracedNumber:
        return self

    def __deepcopy__(self, memo: Any) -> TracedNumber:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float, (self.escape(),)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [value.escape() if isinstance(value, TracedNumber) else value for value in inputs]
        return getattr(function, method)(*plain, **options)

    @property
    def real(self) -> TracedNumber:
        """The number itself."""
        return self

    def conjugate(self) -> TracedNumber:
        """Return the number itself."""
        return self

    def as_integer_ratio(self) -> tuple[int, int]:
        """Return numerator and denominator, as float.as_integer_ratio does."""
        return self.escape().as_integer_ratio()

    def hex(self) -> str:
        """Return the number as text, as float.hex does."""
        return self.escape().hex()

    def is_integer(self) -> bool:
        """Return whether the number is integral, as float.is_integer does."""
        return self.escape().is_integer()


def escape_all(value: Any) -> Any:
    """Return a value with plain numbers for the traced ones in it, in lists, tuples and dictionaries also."""
    if isinstance(value, TracedNumber):
        return value.escape()
    if not has_traced((value,)):
        return value
    if isinstance(value, dict):
        return {escape_all(key): escape_all(item) for key, item in value.items()}
    return type(value)(map(escape_all, value))


def has_traced(values: Iterable[Any]) -> bool:
    """Return whether there is a traced number among the values, or in a list, tuple or dictionary of them."""
    return any(
        isinstance(value, TracedNumber)
        or (type(value) in (list, tuple) and has_traced(value))
        or (isinstance(value, dict) and (has_traced(value.values()) or has_traced(value.keys())))
        for value in values
    )


def compute_traced(name: str, operands: Sequence[Any], value: Any) -> TracedNumber | None:
    """Return ``value`` as the result of a function of traced and plain numbers; None if no expression describes it."""
    expressions = [_expression_of(operand) for operand in operands]
    traced = [operand for operand in operands if isinstance(operand, TracedNumber)]
    if None in expressions or not traced or type(value) is not float:
        return None
    return traced[0].trace.make(value, (name, *expressions))


def _binary(name: str, symbol: str, reflected: bool) -> Callable[[TracedNumber, Any], Any]:
    method = getattr(float, f"__{'r' if reflected else ''}{name}__")

    def compute(self: TracedNumber, other: Any, *rest: Any) -> Any:
        found = method(self, other, *rest)
        if found is NotImplemented:
            if not isinstance(other, torch.Tensor):  # a tensor records the number; others read it
                self.escape()
            return found
        operand = _expression_of(other)
        if operand is None or rest or type(found) is not float:
            for value in (self, other):
                if isinstance(value, TracedNumber):
                    value.escape()
            return found
        pair = (operand, self.expression) if reflected else (self.expression, operand)
        return self.trace.make(found, (symbol, *pair))

    return compute


def _comparison(name: str, symbol: str) -> Callable[[TracedNumber, Any], Any]:
    method = getattr(float, f"__{name}__")

    def compare(self: TracedNumber, other: Any) -> Any:
        outcome = method(self, other)
        operand = _expression_of(other)
        if operand is not None and outcome is not NotImplemented:
            self.trace.add_condition(symbol, self.expression, operand, outcome)
        elif not isinstance(other, torch.Tensor):
            self.escape()
        return outcome

    return compare


for _name, _symbol in _BINARY.items():
    setattr(TracedNumber, f"__{_name}__", _binary(_name, _symbol, False))
    setattr(TracedNumber, f"__r{_name}__", _binary(_name, _symbol, True))
for _name, _symbol in _COMPARISONS.items():
    setattr(TracedNumber, f"__{_name}__", _comparison(_name, _symbol))


def render(expression: Expression, name_source: Callable[[Hashable], str]) -> str:
    """Return an expression as Python code. ``name_source`` returns the code of a source."""
    kind, *operands = expression
    if kind == "source":
        return name_source(operands[0])
    if kind == "constant":
        value = operands[0]
        return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
    parts = [render(operand, name_source) for operand in operands]
    if kind == "abs" or kind.startswith("math."):
        return f"{kind}({', '.join(parts)})"
    return f"(-{parts[0]})" if len(parts) == 1 else f"({parts[0]} {kind} {parts[1]})"


def sources_of(expression: Expression) -> set[Hashable]:
    """Return the names of the sources of an expression."""
    kind, *operands = expression
    if kind == "source":
        return {operands[0]}
    return set().union(*map(sources_of, operands)) if kind != "constant" else set()


def compile_function(body: str) -> Callable[[Mapping[Hashable, float] | list[float]], Any]:
    """Return the function of ``s``, a sequence of numbers, with this body."""
    found: Any = eval(f"lambda s: {body}", {"__builtins__": {"abs": abs, "float": float, "math": math}})
    return found  # type: ignore[no-any-return]
