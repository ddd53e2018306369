"""Encode pytrees of lists, tuples and dictionaries as JSON.

A leaf is encoded as its index; ``{"constant": value}`` is a leaf that is not a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PLAIN = (type(None), bool, int, float, str)


class LeafIndex(int):
    """Index of a leaf, as a type distinct from constant integers."""


def encode(value: Any) -> Any:
    """Encode a pytree whose leaves are LeafIndex and constants. Raises TypeError for other containers, leaves, keys."""
    if isinstance(value, LeafIndex):
        return int(value)
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(item) for item in value]}
    if type(value) is dict and all(type(key) in _PLAIN for key in value):
        return {"dict": [[key, encode(item)] for key, item in value.items()]}
    if type(value) in _PLAIN:
        return {"constant": value}
    raise TypeError(f"{type(value)} cannot be encoded as JSON")


def decode(encoded: Any, leaves: Sequence[Any]) -> Any:
    """Decode a pytree and insert ``leaves`` by index."""
    if isinstance(encoded, int):
        return leaves[encoded]
    ((kind, content),) = encoded.items()
    if kind == "constant":
        return content
    if kind == "dict":
        return {key: decode(item, leaves) for key, item in content}
    return (list if kind == "list" else tuple)(decode(item, leaves) for item in content)


def flatten(encoded: Any, value: Any, what: str) -> dict[int, Any]:
    """Return the leaves of a value by index, without constants. Raises TypeError if its structure differs."""
    found: dict[int, Any] = {}

    def walk(part: Any, item: Any, path: str) -> None:
        if isinstance(part, int):
            found[part] = item
            return
        ((kind, content),) = part.items()
        if kind == "constant":
            if type(item) is not type(content) or item != content:
                raise TypeError(
                    f"{what}: {path} is {item!r}, but the program was exported with the constant {content!r}"
                )
        elif kind == "dict":
            keys = [key for key, _ in content]
            if not isinstance(item, dict) or set(item) != set(keys):
                raise TypeError(f"{what}: expected a dictionary of {keys} at {path}, got {item!r:.80}")
            for key, sub in content:
                walk(sub, item[key], f"{path}[{key!r}]")
        else:
            if not isinstance(item, (list, tuple)) or len(item) != len(content):
                raise TypeError(f"{what}: expected a {kind} of {len(content)} at {path}, got {item!r:.80}")
            for place, (sub, one) in enumerate(zip(content, item, strict=True)):
                walk(sub, one, f"{path}[{place}]")

    walk(encoded, value, "(args, kwargs)")
    return found
