"""Shard arrays over the devices of all processes with SPMD, where one device ``xla:0`` represents the whole mesh.

The mesh has the platform's devices of all processes in one row; the processes run the same script in lockstep. An array
without a sharding annotation is replicated over the mesh. Arrays created before SPMD was enabled are on one device;
``place_inputs`` replicates them when a program reads them.
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
from torch_xla._engine.compat import pjrt_execution, sharding
from torch_xla._engine.device import abstract_device, devices
from torch_xla._engine.device.abstract_device import AbstractArray
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel.replica_program import to_local_array

#: Array shape -> sharding; None: replicated.
Layout = Callable[[tuple[int, ...]], Sharding | None]


@functools.cache
def mesh_devices() -> tuple[jax.Device, ...]:
    """Return the devices of ``xla:0``, of all processes, in the order in which meshes number them."""
    return tuple(jax.devices(devices.platform()))


@functools.cache
def replicated_sharding() -> NamedSharding:
    """Return the fully replicated sharding. Its mesh has an axis for each prime factor of the number of devices.

    jax describes the shardings of unannotated results with the axes of a program's first mesh. With one axis per prime
    factor, this mesh can express whatever XLA chooses, independent of the axes of the user's meshes.
    """
    all_devices = np.array(mesh_devices())
    factors = _prime_factors(all_devices.size) or [1]
    names = tuple(f"d{number}" for number in range(len(factors)))
    return NamedSharding(Mesh(all_devices.reshape(factors), names), PartitionSpec())


def _prime_factors(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_prime_factors(number // factor)]
    return []


def mesh_sharding(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """Return a sharding over a user's mesh, whose devices may be in any order.

    jax requires one device order per program. So all shardings use the order of ``mesh_devices``, and the sharding of
    a mesh in another order contains the permutation:

        mesh_devices()                 d0 d1 d2 d3
        user's mesh, axis "x"          d2 d0 d3 d1     shard i of PartitionSpec("x") is on the i-th of these
        NamedSharding here             Mesh([d0, d1, d2, d3]), logical device ids (2, 0, 3, 1)
    """
    all_devices = mesh_devices()
    numbers = {device: number for number, device in enumerate(all_devices)}
    order = tuple(numbers[device] for device in mesh.devices.flat)
    return sharding.reordered_sharding(
        Mesh(np.array(all_devices).reshape(mesh.devices.shape), mesh.axis_names), spec, order
    )


def normalize_sharding(found: Sharding) -> Sharding:
    """Return a sharding over all devices in the form that programs take: a NamedSharding in ``mesh_devices`` order."""
    if isinstance(found, NamedSharding) and isinstance(found.mesh, Mesh):
        order = tuple(found.mesh.devices.flat)
        is_permuted = order != mesh_devices() and set(order) == set(mesh_devices())
        return mesh_sharding(found.mesh, found.spec) if is_permuted else found
    return sharding.to_named_sharding(found, mesh_devices())


def partition_count() -> int:
    """Return the number of partitions of every program: the number of mesh devices; 1 without SPMD."""
    return len(mesh_devices()) if replicas.is_spmd() else 1


class _UploadSharding(threading.local):
    """The requested sharding of this thread's uploads, and whether each process uploads only its shard."""

    layout: Layout | None = None
    parts: bool = False


_uploads = _UploadSharding()


@contextmanager
def upload_sharding(layout: Layout, parts: bool = False) -> Iterator[None]:
    """In the block, shard this thread's uploads as ``layout`` returns for their shapes.

    With ``parts``, a host array with a sharding is this process's shard of the global array that the upload returns.
    """
    before = _uploads.layout, _uploads.parts
    _uploads.layout, _uploads.parts = layout, parts
    try:
        yield
    finally:
        _uploads.layout, _uploads.parts = before


def upload(host: np.ndarray, device: jax.Device) -> jax.Array:
    """Upload a host array to the device; with SPMD to all devices, replicated unless ``upload_sharding`` is active.

    Requires ``recorder.allow_transfers(wide=True)``. With SPMD this records the sharding of the next buffer.
    """
    if not replicas.is_spmd():
        return pjrt_execution.put_host_array(host, device)
    layout = upload_sharding_for(host.shape)
    with recorder.enable_x64():
        if not _uploads.parts or layout is replicated_sharding():
            return reshard(host, layout)
        array = jax.make_array_from_process_local_data(layout, host)
    return note_buffer_sharding(array, layout)


def abstract_upload(shape: tuple[int, ...], dtype: np.dtype[Any], device: jax.Device) -> AbstractArray:
    """Return the abstract array that ``upload`` would return for a host array of this shape, on abstract devices."""
    sharding = upload_sharding_for(shape) if replicas.is_spmd() else SingleDeviceSharding(device)
    array = AbstractArray(sharding_ids.padded_shape(shape, sharding), dtype, sharding)
    note_sharding(array)
    return array


def note_sharding(array: Any) -> None:
    """With SPMD, record the sharding of the array for the next buffer; else do nothing."""
    if replicas.is_spmd():
        note_buffer_sharding(array, normalize_sharding(array.sharding))


def replicate(array: jax.Array) -> jax.Array | None:
    """Return the array on all devices, unchanged if it is on all devices already; None without SPMD."""
    if not replicas.is_spmd():
        return None
    return array if is_on_all_devices(array) else reshard(array, replicated_sharding())


def value_of(buffer: jax.Array) -> jax.Array:
    """Return the value of a tensor's buffer in this process: with SPMD the array, else its local shard."""
    return buffer if replicas.is_spmd() else to_local_array(buffer)


def upload_sharding_for(shape: tuple[int, ...]) -> Sharding:
    """Return the requested sharding of this thread's uploads of a shape."""
    found = _uploads.layout(shape) if _uploads.layout is not None else None
    return found or replicated_sharding()


def reshard(value: Any, requested: Sharding, shape: tuple[int, ...] | None = None) -> jax.Array:
    """Return a host array or an array of any sharding with the requested sharding, and record it for the next buffer.

    Args:
      shape: the shape of the tensor, if the array is padded (``sharding_ids.padded_shape``).
    """
    shape = shape or tuple(value.shape)
    with recorder.enable_x64():
        array = _reshard(value, requested, shape)
    return note_buffer_sharding(array, requested)


def note_buffer_sharding(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Record the sharding and the bytes per device of the next buffer that the recorder creates; return the array."""
    size = sharding_ids.bytes_per_device(array.shape, array.dtype.itemsize, sharding)
    recorder.bindings().set_sharding(sharding_ids.sharding_id(sharding, array.ndim), size)
    return array


def _reshard(value: Any, requested: Sharding, shape: tuple[int, ...]) -> Any:
    padded_shape = sharding_ids.padded_shape(shape, requested)
    if abstract_device.is_enabled():
        return AbstractArray(padded_shape, value.dtype, requested)
    on_mesh = isinstance(value, jax.Array) and is_on_all_devices(value)
    if on_mesh and tuple(value.shape) != padded_shape:
        return _reshard_on_device(value, shape, requested)
    if replicas.process_count() == 1 or on_mesh:
        array: jax.Array = jax.device_put(pad_to(value, padded_shape), requested, may_alias=False)
        return array
    host = pad_to(np.asarray(value), padded_shape)
    return jax.make_array_from_callback(host.shape, requested, host.__getitem__)


def pad_to(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the array padded with zeros at the end of each dimension; unchanged if it has the shape already."""
    if tuple(value.shape) == shape:
        return value
    widths = [(0, padded - size) for size, padded in zip(value.shape, shape, strict=True)]
    return jnp.pad(value, widths) if isinstance(value, jax.Array) else np.pad(value, widths)


def _reshard_on_device(array: jax.Array, shape: tuple[int, ...], requested: Sharding) -> jax.Array:
    """Reshard an array with a compiled program, so that no device holds the full array meanwhile."""
    current = normalize_sharding(array.sharding)
    result: jax.Array = _resharding_function(shape, current, requested)(array)
    return result


@functools.lru_cache(maxsize=1024)
def _resharding_function(
    shape: tuple[int, ...], current: Sharding, requested: Sharding
) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(
        lambda x: pad_to(unpad(x, shape), sharding_ids.padded_shape(shape, requested)),
        in_shardings=(current,),
        out_shardings=requested,
    )


def unpad(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the array without padding, in the shape of the tensor."""
    return array if tuple(array.shape) == shape else array[tuple(slice(size) for size in shape)]


def is_on_all_devices(array: jax.Array) -> bool:
    """Return whether the array is on all devices of the mesh, sharded or replicated."""
    return len(array.sharding.device_set) == len(mesh_devices())


# Replicated copies of single-device arrays created before SPMD was enabled, while those live.
_replicated: dict[int, tuple[weakref.ref[jax.Array], jax.Array]] = {}


def _replicate(array: jax.Array) -> jax.Array:
    number = id(array)
    known = _replicated.get(number)
    if known is not None and known[0]() is array and not known[1].is_deleted():
        return known[1]
    on_mesh = reshard(array, replicated_sharding())
    recorder.bindings().set_sharding(0)  # the recorder creates no buffer for it
    _replicated[number] = weakref.ref(array, lambda _: _forget(number)), on_mesh
    return on_mesh


def _forget(number: int) -> None:
    _replicated.pop(number, None)


def input_shardings(leaves: Sequence[jax.Array]) -> tuple[Sharding, ...] | None:
    """The shardings of the leaves as ``placed`` leaves them; None without SPMD."""
    if not replicas.is_spmd():
        return None
    return tuple(leaf.sharding if is_on_all_devices(leaf) else replicated_sharding() for leaf in leaves)


def place_inputs(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a program, with single-device arrays replicated over the mesh."""
    return [a if isinstance(a, np.ndarray) or is_on_all_devices(a) else _replicate(a) for a in arguments]


def gather_to_host(array: jax.Array) -> np.ndarray:
    """Return the full array on the host. If shards are on devices of other processes, all processes must call this."""
    # np.asarray caches the host copy in the jax.Array for its lifetime. Read the shards instead: they are new arrays,
    # and their cached copies are freed with them. Without SPMD, an array is on one device.
    if not replicas.is_spmd() or array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    if not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    host = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            host[shard.index] = np.asarray(shard.data)
    return host
