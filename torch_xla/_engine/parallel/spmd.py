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
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat import sharding
from torch_xla._engine.device import abstract_device, devices
from torch_xla._engine.device.abstract_device import AbstractArray
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel.replica_program import to_local_array

#: Of an array of the given shape, how it shall lie; None: replicated.
Layout = Callable[[tuple[int, ...]], Sharding | None]


@functools.cache
def mesh_devices() -> tuple[jax.Device, ...]:
    """The devices behind ``xla:0``, those of all processes, in the order by which meshes number them."""
    return tuple(jax.devices(devices.platform()))


@functools.cache
def replicated_sharding() -> NamedSharding:
    """Everything on every device. Its mesh has an axis for each prime factor of the number of devices.

    jax describes results that nobody has laid out by the axes of a program's first mesh: these say what XLA chooses,
    whatever the axes of the user's meshes.
    """
    everyone = np.array(mesh_devices())
    factors = _prime_factors(everyone.size) or [1]
    names = tuple(f"d{number}" for number in range(len(factors)))
    return NamedSharding(Mesh(everyone.reshape(factors), names), PartitionSpec())


def _prime_factors(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_prime_factors(number // factor)]
    return []


def mesh_sharding(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """The sharding over a mesh of the user's, which may go through the devices in any order.

    jax takes the devices of one program in one order. So all shardings here go through them as ``mesh_devices`` does,
    and those of other meshes say where their parts lie.
    """
    everyone = mesh_devices()
    numbers = {device: number for number, device in enumerate(everyone)}
    order = tuple(numbers[device] for device in mesh.devices.flat)
    return sharding.reordered_sharding(
        Mesh(np.array(everyone).reshape(mesh.devices.shape), mesh.axis_names), spec, order
    )


def normalize_sharding(found: Sharding) -> Sharding:
    """A sharding of jax's, over all devices, as programs here take it: what XLA chose, and meshes in any order."""
    if isinstance(found, NamedSharding) and isinstance(found.mesh, Mesh):
        mine = tuple(found.mesh.devices.flat)
        other = mine != mesh_devices() and set(mine) == set(mesh_devices())
        return mesh_sharding(found.mesh, found.spec) if other else found
    return sharding.to_named_sharding(found, mesh_devices())


def partition_count() -> int:
    """Into how many partitions XLA splits every program: the devices behind ``xla:0``; 1 without SPMD."""
    return len(mesh_devices()) if replicas.is_spmd() else 1


class _UploadSharding(threading.local):
    """How this thread's uploads are to lie, and whether each process gives a part of its own."""

    layout: Layout | None = None
    parts: bool = False


_uploads = _UploadSharding()


@contextmanager
def upload_sharding(layout: Layout, parts: bool = False) -> Iterator[None]:
    """In the block, what this thread uploads lies as ``layout`` says of its shape.

    With ``parts`` an array that has a layout is this process's part of a larger one, which is what comes of it.
    """
    before = _uploads.layout, _uploads.parts
    _uploads.layout, _uploads.parts = layout, parts
    try:
        yield
    finally:
        _uploads.layout, _uploads.parts = before


def upload(host: np.ndarray, device: jax.Device) -> jax.Array:
    """A host array on the device, or with SPMD on all; unless uploads() says otherwise the same one in every process.

    With SPMD the next buffer made is noted to lie so.
    """
    if not replicas.is_spmd():
        buffer: jax.Array = jax.device_put(host, device, may_alias=False)
        return buffer
    layout = upload_sharding_for(host.shape)
    if not _uploads.parts or layout is replicated_sharding():
        return reshard(host, layout)
    with recorder.enable_x64():
        array = jax.make_array_from_process_local_data(layout, host)
    return note_buffer_sharding(array, layout)


def abstract_upload(shape: tuple[int, ...], dtype: np.dtype[Any], device: jax.Device) -> AbstractArray:
    """What ``put`` gives of a host array of that shape, on devices without values."""
    sharding = upload_sharding_for(shape) if replicas.is_spmd() else SingleDeviceSharding(device)
    array = AbstractArray(sharding_ids.padded_shape(shape, sharding), dtype, sharding)
    note_sharding(array)
    return array


def note_sharding(array: Any) -> None:
    """With SPMD the next buffer made is noted to have the sharding of the array; without, nothing is."""
    if replicas.is_spmd():
        note_buffer_sharding(array, normalize_sharding(array.sharding))


def replicate(array: jax.Array) -> jax.Array | None:
    """The array on all devices, as it is if it is there already; None without SPMD."""
    if not replicas.is_spmd():
        return None
    return array if is_on_all_devices(array) else reshard(array, replicated_sharding())


def value_of(buffer: jax.Array) -> jax.Array:
    """What a tensor's buffer holds for this process: with SPMD all of it, else its own part of a global array."""
    return buffer if replicas.is_spmd() else to_local_array(buffer)


def upload_sharding_for(shape: tuple[int, ...]) -> Sharding:
    """How this thread's uploads of that shape are to lie."""
    found = _uploads.layout(shape) if _uploads.layout is not None else None
    return found or replicated_sharding()


def reshard(value: Any, wanted: Sharding, shape: tuple[int, ...] | None = None) -> jax.Array:
    """A host array, or an array of any sharding, laid out. The next buffer made is noted to lie so.

    ``shape`` is that of the tensor, where the value is longer than it (``shardings.padded``).
    """
    shape = shape or tuple(value.shape)
    with recorder.enable_x64():
        array = _reshard(value, wanted, shape)
    return note_buffer_sharding(array, wanted)


def note_buffer_sharding(array: jax.Array, lies: Sharding) -> jax.Array:
    """The array; the next buffer made is noted to lie so, and to hold as much of it as one device does."""
    size = sharding_ids.bytes_per_device(array.shape, array.dtype.itemsize, lies)
    recorder.bindings().set_sharding(sharding_ids.sharding_id(lies, array.ndim), size)
    return array


def _reshard(value: Any, wanted: Sharding, shape: tuple[int, ...]) -> Any:
    long = sharding_ids.padded_shape(shape, wanted)
    if abstract_device.is_enabled():
        return AbstractArray(long, value.dtype, wanted)
    spread = isinstance(value, jax.Array) and is_on_all_devices(value)
    if spread and tuple(value.shape) != long:
        return _reshard_on_device(value, shape, wanted)
    if replicas.process_count() == 1 or spread:
        array: jax.Array = jax.device_put(pad_to(value, long), wanted, may_alias=False)
        return array
    host = pad_to(np.asarray(value), long)
    return jax.make_array_from_callback(host.shape, wanted, host.__getitem__)


def pad_to(value: Any, shape: tuple[int, ...]) -> Any:
    """An array, filled up with zeros to a shape that is as long or longer. One of jax that is long enough as it is."""
    if tuple(value.shape) == shape:
        return value
    widths = [(0, long - size) for size, long in zip(value.shape, shape, strict=True)]
    return jnp.pad(value, widths) if isinstance(value, jax.Array) else np.pad(value, widths)


def _reshard_on_device(array: jax.Array, shape: tuple[int, ...], wanted: Sharding) -> jax.Array:
    """The array laid out anew by a program: no device has all of it on the way."""
    coming = normalize_sharding(array.sharding)
    result: jax.Array = _resharding_function(shape, coming, wanted)(array)
    return result


@functools.lru_cache(maxsize=1024)
def _resharding_function(
    shape: tuple[int, ...], coming: Sharding, wanted: Sharding
) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(
        lambda x: pad_to(unpad(x, shape), sharding_ids.padded_shape(shape, wanted)),
        in_shardings=(coming,),
        out_shardings=wanted,
    )


def unpad(array: Any, shape: tuple[int, ...]) -> Any:
    """Of an array, the part that is the tensor's."""
    return array if tuple(array.shape) == shape else array[tuple(slice(size) for size in shape)]


def is_on_all_devices(array: jax.Array) -> bool:
    """Whether the array is there on all devices of the mesh, in parts or whole."""
    return len(array.sharding.device_set) == len(mesh_devices())


# Replicated forms of arrays from before SPMD, while these live.
_replicated: dict[int, tuple[weakref.ref[jax.Array], jax.Array]] = {}


def _replicate(array: jax.Array) -> jax.Array:
    number = id(array)
    known = _replicated.get(number)
    if known is not None and known[0]() is array and not known[1].is_deleted():
        return known[1]
    spread = reshard(array, replicated_sharding())
    recorder.bindings().set_sharding(0)  # no buffer is made of it
    _replicated[number] = weakref.ref(array, lambda _: _forget(number)), spread
    return spread


def _forget(number: int) -> None:
    _replicated.pop(number, None)


def input_shardings(leaves: Sequence[jax.Array]) -> tuple[Sharding, ...] | None:
    """The shardings of the leaves as ``placed`` leaves them; None without SPMD."""
    if not replicas.is_spmd():
        return None
    return tuple(leaf.sharding if is_on_all_devices(leaf) else replicated_sharding() for leaf in leaves)


def place_inputs(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a program, each on all devices."""
    return [a if isinstance(a, np.ndarray) or is_on_all_devices(a) else _replicate(a) for a in arguments]


def gather_to_host(array: jax.Array) -> np.ndarray:
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
