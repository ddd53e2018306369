"""User-defined operations, built from XLA operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.capture import jax_function
from torch_xla.core import _builder

__all__ = ["Op", "register"]


class Op:
    """A function of xla tensors that is recorded as one operation without a gradient. See register.

    Args:
      name: name of the operation in graphs.
      opfn: a function of Ops that returns an Op.
    """

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
        """Record the operation on xla tensors; other arguments are constants of the program."""
        return jax_function.call_jax(self._lowered, args, kwargs, self._name)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """Return ``opfn``, a function of ``xla_builder.Op``s that returns an Op, as a function of xla tensors.

    ``opfn`` is called once for each combination of structure, shapes, dtypes and constants of its arguments. A tuple Op
    becomes a tuple of tensors. For a gradient, write the function in jax (``torch_xla.interop.jax_function``), or wrap
    it in an autograd Function.

    Args:
      name: name of the operation in HLO and reports.
      opfn: the function.

    Raises:
      TypeError: a tensor is not on an xla device (raised by the returned function).
    """
    return Op(name, opfn)
