"""Calls of jax functions, under upstream's name. The builder of HLO computations (``Op``) does not exist here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine.interop import calls

__all__ = ["call_jax"]


def call_jax(
    jax_func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None, name: str | None = None
) -> Any:
    """Records ``jax_func(*args, **kwargs)`` on xla tensors, as one operation of the graph.

    Args:
      jax_func: a function of jax arrays, without side effects. It is traced once for each structure, shapes, dtypes
        and constants of its arguments, with 64-bit types on, as torch has them: ``jnp.zeros(3)`` is float64 there.
        What it closes over is a constant of the program, also when it changes later.
      args, kwargs: structures that jax knows (tuples, lists, dicts, registered classes). Their xla tensors become
        arrays; all other leaves are constants of the program, which is compiled again for others.
      name: what the operation is called in dumps, reports and HLO; by default the function's own name.

    Returns:
      What the function gives, with xla tensors of jax's dtypes in place of arrays. They have no gradient:
      ``torch_xla.interop.jax_function`` makes a differentiable function.

    Raises:
      TypeError: a tensor is not on xla, a constant has no hash, or a result has a dtype that torch lacks.
      ValueError: the function uses a value of another jax transformation.
      RuntimeError: the tensors are on several devices.
    """
    return calls.call(jax_func, args, kwargs, name)
