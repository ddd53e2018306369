"""Values over all devices, where one process (or each of several, in step) drives them as one: SPMD.

Then there is one xla device, ``xla:0``. Behind it lie the devices of the platform, in all processes, as a mesh in one
row; a value that nobody has laid out otherwise is there on every device (replicated). Arrays from before SPMD was
switched on lie on one device; ``placed`` puts them on all when a program reads them.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from torch_xla._engine import recorder
from torch_xla._engine.base import shardings
from torch_xla._engine.device import abstract, devices
from torch_xla._engine.device.abstract import AbstractArray
from torch_xla._engine.job import replicas

#: Of an array of the given shape, how it shall lie; None: replicated.
Layout = Callable[[tuple[int, ...]], Sharding | None]


@functools.cache
def mesh_devices() -> tuple[jax.Device, ...]:
    """The devices behind ``xla:0``, those of all processes, in the order by which meshes number them."""
    return tuple(jax.devices(devices.platform()))


# The devices by number, in the one order in which all meshes of the process go through them. Decided by the first mesh,
# or by the first value that is put on the devices; jax takes no values with several orders into one program.
_order: tuple[int, ...] = ()


def use_order(numbers: tuple[int, ...]) -> None:
    """Takes ``numbers`` as the order of the devices in all meshes. ValueError if another one has been decided."""
    global _order
    if not _order:
        _order = numbers
    if _order != numbers:
        raise ValueError(
            f"a mesh goes through the devices as {list(numbers)}, but this process has meshes or tensors that go "
            f"through them as {list(_order)}: all must use one order, so make that mesh before the first tensor"
        )


@functools.cache
def replicated() -> NamedSharding:
    """Everything on every device."""
    everyone = mesh_devices()
    if not _order:
        use_order(tuple(range(len(everyone))))
    return NamedSharding(Mesh(np.array([everyone[number] for number in _order]), ("device",)), PartitionSpec())


class _Uploads(threading.local):
    """How this thread's uploads are to lie, and whether each process gives a part of its own."""

    layout: Layout | None = None
    parts: bool = False


_uploads = _Uploads()


@contextmanager
def uploads(layout: Layout, parts: bool = False) -> Iterator[None]:
    """In the block, what this thread uploads lies as ``layout`` says of its shape.

    With ``parts`` an array that has a layout is this process's part of a larger one, which is what comes of it.
    """
    before = _uploads.layout, _uploads.parts
    _uploads.layout, _uploads.parts = layout, parts
    try:
        yield
    finally:
        _uploads.layout, _uploads.parts = before


def put(host: np.ndarray) -> jax.Array:
    """A host array on the devices; unless uploads() says otherwise the same one in every process.

    The next buffer made is noted to lie so.
    """
    layout = wanted(host.shape)
    if not _uploads.parts or layout is replicated():
        return laid_out(host, layout)
    with recorder.wide_types():
        array = jax.make_array_from_process_local_data(layout, host)
    return _noted(array, layout)


def wanted(shape: tuple[int, ...]) -> Sharding:
    """How this thread's uploads of that shape are to lie."""
    found = _uploads.layout(shape) if _uploads.layout is not None else None
    return found or replicated()


def laid_out(value: Any, sharding: Sharding) -> jax.Array:
    """A host array, or an array of any sharding, laid out. The next buffer made is noted to lie so."""
    with recorder.wide_types():
        array = _laid_out(value, sharding)
    return _noted(array, sharding)


def _noted(array: jax.Array, sharding: Sharding) -> jax.Array:
    recorder.module().set_sharding(shardings.number(sharding, array.ndim))
    return array


def _laid_out(value: Any, sharding: Sharding) -> Any:
    if abstract.is_on():
        return AbstractArray(value.shape, value.dtype, sharding)
    if replicas.process_count() == 1 or (isinstance(value, jax.Array) and is_spread(value)):
        array: jax.Array = jax.device_put(value, sharding, may_alias=False)
        return array
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def is_spread(array: jax.Array) -> bool:
    """Whether the array is there on all devices of the mesh, in parts or whole."""
    return len(array.sharding.device_set) == len(mesh_devices())


# Replicated forms of arrays from before SPMD, while these live.
_replicated: dict[int, tuple[weakref.ref[jax.Array], jax.Array]] = {}


def _on_all(array: jax.Array) -> jax.Array:
    number = id(array)
    known = _replicated.get(number)
    if known is not None and known[0]() is array and not known[1].is_deleted():
        return known[1]
    spread = laid_out(array, replicated())
    recorder.module().set_sharding(0)  # no buffer is made of it
    _replicated[number] = weakref.ref(array, lambda _: _forget(number)), spread
    return spread


def _forget(number: int) -> None:
    _replicated.pop(number, None)


def placed(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a program, each on all devices."""
    return [a if isinstance(a, np.ndarray) or is_spread(a) else _on_all(a) for a in arguments]


def whole(array: jax.Array) -> np.ndarray:
    """All elements, on the host. Where parts are on devices of other processes, all processes must ask for it."""
    # An array keeps the host copy that np.asarray has made of it for as long as it lives. So ask its parts, which are
    # arrays made for the asking.
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    if not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    host = np.empty(array.shape, array.dtype)
    for part in array.addressable_shards:
        if part.replica_id == 0:
            host[part.index] = np.asarray(part.data)
    return host
