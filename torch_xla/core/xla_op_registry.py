"""Operations of the user's own, put together from XLA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.capture import jax_function
from torch_xla.core import _builder

__all__ = ["Op", "register"]


class Op:
    """A function of xla tensors, recorded as one operation without a gradient. See register."""

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self._name, self._opfn = name, opfn

    def _lowered(self, *args: Any, **kwargs: Any) -> Any:
        builder, values, ops = _builder.Builder(self._name), dict[int, Any](), []
        for number, value in enumerate(args):
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                op = _builder.parameter(builder, number, _builder.Shape(value))
                values[id(op)] = value
                ops.append(op)
            else:
                ops.append(value)
        return self._opfn(*ops, **kwargs).evaluate(values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results on xla tensors; other arguments are constants of the program."""
        return jax_function.call_jax(self._lowered, args, kwargs, self._name)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """``opfn`` of ``xla_builder.Op``s, which gives one, as a function of xla tensors.

    It is called once for each structure, shapes, dtypes and constants of its arguments. A tuple Op gives a tuple. For a
    gradient, write the function in jax (``torch_xla.interop.jax_function``), or put the result into an autograd
    Function. TypeError where a tensor is not on xla.
    """
    return Op(name, opfn)
