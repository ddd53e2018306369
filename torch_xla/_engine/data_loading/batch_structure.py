"""Map functions over the tensors of a batch: dicts, lists, tuples and objects, as data loaders return them."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_SEQUENCES = (list, tuple, set, frozenset)


class DataWrapper(abc.ABC):
    """A batch object that lists its tensors itself, for classes that cannot be flattened."""

    @abc.abstractmethod
    def get_tensors(self) -> list[torch.Tensor]:
        """Return the tensors to move to the device."""

    @abc.abstractmethod
    def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """Return the same object with these tensors.

        Args:
          tensors: the tensors, in the order of ``get_tensors``.
        """


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return ``value`` with ``function`` applied to every tensor in it; containers are copied and preserve their types.

    Recurses into mappings, lists, sets, tuples (also named ones) and the attributes of other objects. Returns an object
    without tensors unchanged.
    """
    return map_leaves(value, function, (torch.Tensor,))


def map_leaves(value: Any, function: Callable[[Any], Any], kinds: tuple[type, ...]) -> Any:
    """Apply ``map_tensors`` to instances of ``kinds``."""
    if isinstance(value, kinds):
        return function(value)
    if isinstance(value, DataWrapper):
        return value.from_tensors([function(tensor) for tensor in value.get_tensors()])
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_leaves(item, function, kinds) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)._make(map_leaves(item, function, kinds) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, _SEQUENCES):
        items = [map_leaves(item, function, kinds) for item in value]
        return items if type(value) is list else type(value)(items)
    return _map_object(value, function, kinds)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in ``value``, in the order of map_tensors."""
    return _leaves(value, (torch.Tensor,))


def _leaves(value: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, _PLAIN):
        return
    elif isinstance(value, DataWrapper):
        yield from value.get_tensors()
    elif isinstance(value, (Mapping, *_SEQUENCES)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item, kinds)
    else:
        yield from _leaves(_attributes(value), kinds)


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, (type, torch.nn.Module)):
        return {}
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the type of ``original``, with other values for the same keys."""
    if type(original) is dict:
        return items
    if isinstance(original, MutableMapping):  # an OrderedDict, a defaultdict with its factory, a tokenizer's batch
        twin = copy.copy(original)
        twin.update(items)
        return twin
    return type(original)(items)  # type: ignore[call-arg]  # mappings are made from mappings


def _map_object(value: Any, function: Callable[[Any], Any], kinds: tuple[type, ...]) -> Any:
    attributes = _attributes(value)
    if not any(True for _ in _leaves(attributes, kinds)):
        return value
    twin = copy.copy(value)
    for name, item in attributes.items():
        object.__setattr__(
            twin, name, map_leaves(item, function, kinds)
        )  # object.__setattr__ also works for frozen dataclasses
    return twin
