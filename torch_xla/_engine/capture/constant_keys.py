"""Cache keys of the constants of jax functions, and copies that do not share memory with the user's arrays."""

from __future__ import annotations

import copy
import enum
import hashlib
import types
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jax_core
import numpy as np
import torch
from torch import nn

from torch_xla._engine.capture.object_keys import ByValue

#: Keys contain the bytes of arrays up to this size, and a hash of larger ones.
_LARGE = 4096


#: Types whose objects never change, or are compared by identity, as callables are.
_FIXED = (enum.Enum, types.ModuleType, torch.dtype, torch.layout, torch.memory_format, torch.qscheme, jax.Device,
          type(...), type(NotImplemented))  # fmt: skip


def constant_keys(what: str, leaves: Sequence[Any], tree: Any, hidden: int = 0) -> tuple[Hashable, ...]:
    """Return the keys of the leaves of ``(args, kwargs)`` in order; None for tensors.

    Args:
      what: Name of the API and of the function that it calls, for error messages.
      hidden: Number of leading arguments that the caller did not pass.

    Raises:
      TypeError: A leaf cannot be a constant of a program. The message names the argument.
    """
    try:
        return tuple([None if isinstance(leaf, torch.Tensor) else constant_key(leaf) for leaf in leaves])
    except _UnsuitableError as error:
        # Compute the path only for the error: a cached call does not need it.
        args, kwargs = jax.tree.unflatten(tree, range(len(leaves)))
        for path, place in jax.tree_util.tree_flatten_with_path((args[hidden:], kwargs))[0]:
            if leaves[place] is error.value:
                where = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
                raise TypeError(f"{what}: {where}, {error}") from error.__cause__
        raise


class _UnsuitableError(TypeError):
    """The value has no key that distinguishes it from a later, different value."""

    def __init__(self, value: Any, why: str) -> None:
        super().__init__(why)
        self.value = value


def constant_key(value: Any) -> Hashable:
    """Return a key that is equal for equal constants only: 1, 1.0 and True differ, and so do 0.0 and -0.0.

    Raises:
      TypeError: The value cannot be a constant of a program.
    """
    kind: Any = type(value)
    if kind in (int, str, bool, type(None)):
        return kind, value
    if isinstance(value, (float, complex)):
        return kind, repr(value)
    if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
        return array_key(value)
    if isinstance(value, nn.Module):
        return kind, value, tuple(module.training for module in value.modules())
    try:
        key = ByValue(value)
    except TypeError as error:
        raise _UnsuitableError(
            value,
            f"an object of {kind}, cannot be a constant of the program because it has no hash; pass tensors, numbers, "
            "strings, or pytrees of them",
        ) from error
    if kind.__eq__ is object.__eq__ and kind is not object and not callable(value) and not isinstance(value, _FIXED):
        raise _UnsuitableError(
            value,
            f"an object of {kind}, cannot be a constant of the program because it is compared by identity: later calls "
            "would not see changes of its attributes; define __eq__ and __hash__ (dataclass(frozen=True) does), or "
            "pass its values as tensors, numbers and strings",
        )
    return key


def array_key(value: Any) -> Hashable:
    """Return a key that is equal for arrays of equal type, dtype, shape and content only."""
    if value.dtype.hasobject:
        raise _UnsuitableError(
            value,
            f"an array of {value.dtype}, cannot be a constant of the program: its elements are mutable; pass a list "
            "of them",
        )
    content = value.tobytes()
    if len(content) > _LARGE:
        content = hashlib.sha256(content).digest()
    # The dtype itself, not its name: several ml_dtypes dtypes share a name such as "<V1".
    return type(value), value.dtype, value.shape, content


def nested_jaxprs(params: dict[str, Any]) -> Iterator[jax_core.Jaxpr | jax_core.ClosedJaxpr]:
    """Yield the jaxprs in the parameters of an equation, including those in tuples and lists."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (jax_core.Jaxpr, jax_core.ClosedJaxpr)):
                yield part


def count_bytes(closed: Any, seen: set[int] | None = None) -> int:
    """Return the bytes of the arrays that a jaxpr and its nested jaxprs hold; each array is counted once."""
    seen = set() if seen is None else seen
    total = 0
    for value in getattr(closed, "consts", ()):
        if id(value) not in seen:
            seen.add(id(value))
            total += getattr(value, "nbytes", 0)
    for equation in closed.eqns:
        for inner in nested_jaxprs(equation.params):
            if id(inner) not in seen:
                seen.add(id(inner))
                total += count_bytes(inner, seen)
    return total


def copy_constants(closed: jax_core.ClosedJaxpr) -> jax_core.ClosedJaxpr:
    """Copy every array that a jaxpr and its nested jaxprs hold.

    jax holds the numpy arrays of a closure by reference until the program is lowered, which happens at the step
    barrier.
    """
    found: jax_core.ClosedJaxpr = _Copies().of_closed(closed)
    return found


class _Copies:
    """Copies of jaxprs, keyed by the id of the original: a jaxpr that jax lowers once stays one object in the copy.

    Lives during one call of copy_constants. The originals outlive it, so ids are not reused.
    """

    def __init__(self) -> None:
        self._jaxprs: dict[int, Any] = {}

    def of_closed(self, closed: Any) -> Any:
        found = self._jaxprs.get(id(closed))
        if found is None:
            found = jax_core.ClosedJaxpr(self._of_open(closed.jaxpr), [copy_array(c) for c in closed.consts])
            self._jaxprs[id(closed)] = found
        return found

    def _of_open(self, jaxpr: Any) -> Any:
        return jaxpr.replace(
            eqns=[self._of_equation(equation) for equation in jaxpr.eqns], outvars=[*map(_atom, jaxpr.outvars)]
        )

    def _of_equation(self, equation: Any) -> Any:
        params = {name: self._of_param(value) for name, value in equation.params.items()}
        return equation.replace(invars=[*map(_atom, equation.invars)], params=params)

    def _of_param(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(self._of_param(part) for part in value)
        if isinstance(value, jax_core.ClosedJaxpr):
            return self.of_closed(value)
        return self._of_open(value) if isinstance(value, jax_core.Jaxpr) else value


def _atom(atom: Any) -> Any:
    if not isinstance(atom, jax_core.Literal) or isinstance(atom.val, (bool, int, float, complex, np.generic)):
        return atom
    return jax_core.Literal(copy_array(atom.val), atom.aval)


def copy_array(value: Any) -> Any:
    """Copy an array to the host.

    jax arrays are copied as well: jax.numpy.asarray may share a numpy array's memory. Values that only jax can hold
    (random keys, shards in other processes) are immutable and not copied.
    """
    if not isinstance(value, jax.Array):
        return copy.deepcopy(value) if hasattr(value, "dtype") else value
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) or not value.is_fully_addressable:
        return value
    return np.array(value)
