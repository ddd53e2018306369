"""Process groups of torch; jax's job of several processes, and the collectives of its CPU backend."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch

from torch_xla._engine.compat.private_api import PrivateApi

_WORK = PrivateApi(
    "torch._C._distributed_c10d",
    "_create_work_from_future",
    "the Work that a collective of torch.distributed returns",
    "collectives of torch.distributed raise, and say why",
)
_WORLD = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_world",
    "the names of process groups, which ranks use to meet on the host",
    "process groups of xla raise when they are asked for their name",
)
_GROUP = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_get_default_group",
    "where pickled objects go if no group is named",
    "as the one below",
)
_OBJECTS = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_get_object_coll_device",
    "all_gather_object and its like stay on the host",
    "they go by the device, which compiles a program for each size of object",
)
_PLUGINS = PrivateApi(
    "torch.distributed",
    "Backend._plugins",
    "to register the backend xla once",
    "importing torch_xla.distributed.xla_backend anew, after its module was dropped, raises",
)
_SELF_RECORDING = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_FR_SELF_RECORDING_BACKENDS",
    "torch's flight recorder leaves groups of xla alone, which have no backend in C++ for it to ask",
    "init_process_group('xla') raises 'ProcessGroup name not set', unless TORCH_FR_BUFFER_SIZE=0",
    since="2.15",
)
_JOB = PrivateApi(
    "jax._src.distributed",
    "global_state",
    "the key-value store of a job of several processes",
    "a job of several processes raises at the first use of a device, and says why",
)
_GLOO = PrivateApi(
    "jaxlib._jax",
    "make_gloo_tcp_collectives",
    "collectives of CPU devices use the address by which other machines reach this one",
    "they use what this machine's name resolves to, which other machines may not reach",
)
_CLIENT = PrivateApi("jax._src.xla_bridge", "make_cpu_client", "as the one before", "as the one before")
_FACTORY = PrivateApi("jax._src.xla_bridge", "register_backend_factory", "as the one before", "as the one before")


def work_from_future(future: Any) -> Any:
    """A Work of torch.distributed that is done when the future is."""
    return _WORK.resolve()(future)


def group_name(group: Any) -> str:
    """The name under which a process group is registered."""
    return str(_WORLD.resolve().pg_names[group])


def default_group() -> Any:
    """The process group of all ranks. ValueError before there is one."""
    return _GROUP.resolve()()


def wrap_object_device(ours: Callable[..., Any]) -> None:
    """Where torch makes the tensors of pickled objects becomes ``ours(original, group)``."""
    _OBJECTS.wrap(ours)


def is_registered(backend: str) -> bool:
    """Whether torch.distributed knows a backend that is not its own."""
    plugins = _PLUGINS.resolve_or_none()
    return plugins is not None and backend.upper() in plugins


def exclude_from_flight_recorder(backend: str) -> None:
    """Has torch's flight recorder, which is there from torch 2.15 on, record nothing for groups of a backend."""
    recording = _SELF_RECORDING.resolve_or_none()
    if recording is not None:
        recording.add(backend)
    elif _SELF_RECORDING.is_missing:
        _SELF_RECORDING.warn_missing()


def coordination_client() -> Any:
    """The client of the key-value store of jax's job; None outside of one."""
    return _JOB.resolve().client


def set_gloo_address(address: str, client: Any) -> None:
    """Has jax's CPU backend, which has not started yet, offer its collectives at the address. Nothing without gloo."""
    if jax.config.values["jax_cpu_collectives_implementation"] != "gloo":
        return
    make, create, register = _GLOO.resolve_or_none(), _CLIENT.resolve_or_none(), _FACTORY.resolve_or_none()
    if make is None or create is None or register is None:
        _GLOO.warn_missing()
        return
    collectives = make(distributed_client=client, hostname=address)
    register("cpu", functools.partial(create, collectives=collectives), priority=0, fail_quietly=False)


_SUB_MESH = PrivateApi(
    "torch.distributed.device_mesh",
    "DeviceMesh._create_sub_mesh",
    "parts of a DeviceMesh of xla, such as mesh['tensor']",
    "mesh['tensor'] raises AttributeError for a mesh of xla",
)
_PART = PrivateApi(
    "torch.distributed.device_mesh",
    "DeviceMesh._get_mesh_tensor_from_full_mesh",
    "which devices a part of a mesh has, where there is one process and no process group",
    "mesh['tensor'] raises for a mesh of xla before init_process_group",
)
_ROOT = PrivateApi(
    "torch.distributed.device_mesh",
    "DeviceMesh._get_root_mesh",
    "the whole mesh of a part, which XLA needs to lay a tensor out over the part",
    "laying a tensor out over a part of a mesh raises, and says why",
)
_FULLY_SHARD = (
    PrivateApi(
        "torch.distributed.fsdp._fully_shard._fully_shard",
        "fully_shard",
        "torch's FSDP2 on a mesh of xla",
        "fully_shard does not know xla and raises",
    ),
    PrivateApi("torch.distributed.fsdp._fully_shard", "fully_shard", "as the one before", "as the one before"),
)


def root_mesh(mesh: Any) -> Any:
    """The DeviceMesh that a mesh is a part of, or itself."""
    return _ROOT.resolve()(mesh)


def allow_submeshes() -> None:
    """Makes ``mesh['name']`` work for a DeviceMesh that has no process groups, as those of xla have none."""

    def sub_mesh(original: Callable[..., Any], mesh: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(mesh, "_dim_group_names"):
            return original(mesh, *args, **kwargs)
        mesh._dim_group_names = []
        try:
            part = original(mesh, *args, **kwargs)
        finally:
            del mesh._dim_group_names
        part.__dict__.pop("_dim_group_names", None)
        return part

    def of_rank(full_mesh: Any, current_rank: int | None = None) -> Any:
        known = current_rank is not None or torch.distributed.is_initialized()
        return original(full_mesh, current_rank if known else 0)

    _SUB_MESH.wrap(sub_mesh)
    original = _PART.resolve_or_none()
    if original is None:
        _PART.warn_missing()
    elif not getattr(original, "_torch_xla", False):
        of_rank._torch_xla = True  # type: ignore[attr-defined]
        setattr(torch.distributed.device_mesh.DeviceMesh, _PART.name.split(".")[-1], staticmethod(of_rank))


class _MaskableDeviceType(str):
    """``"xla"`` as the device type of a mesh, which torch's next look at it can be made not to recognize.

    torch makes no process groups for a mesh whose device type is ``"xla"``, and gives tensors and modules on one to
    this package instead of distributing them. Where there are process groups, its own code does what is needed.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if getattr(_unseen, "next", False) and str.__eq__(self, other) is True:
            _unseen.next = False
            return False
        return bool(str.__eq__(self, other) is True)

    def __ne__(self, other: object) -> bool:
        return not self == other


_unseen = threading.local()


@contextmanager
def mask_device_type() -> Iterator[None]:
    """In the block torch does not see, the next time that it looks, that a mesh over process groups is one of xla."""
    _unseen.next = True
    try:
        yield
    finally:
        _unseen.next = False


def has_process_groups(mesh: Any) -> bool:
    """Whether a mesh of xla has process groups."""
    return isinstance(mesh.device_type, _MaskableDeviceType)


def create_mesh_groups(wanted: Callable[[], bool]) -> None:
    """Has a DeviceMesh of xla that is made when ``wanted()`` have process groups, as those of other devices have."""
    kind: Any = torch.distributed.device_mesh.DeviceMesh
    original = kind.__init__
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != "xla" or not wanted():
            original(self, device_type, *args, **kwargs)
            return
        with mask_device_type():
            original(self, _MaskableDeviceType("xla"), *args, **kwargs)

    init._torch_xla = True  # type: ignore[attr-defined]
    kind.__init__ = init


def modules_with_fully_shard() -> list[str]:
    """The modules that have fully_shard, by name; the one that defines it first."""
    return [*(name.module for name in _FULLY_SHARD), "torch.distributed.fsdp"]


def silence_missing_cuda_driver() -> None:
    """Has jax not log the traceback of its CUDA plugin, which finds no driver, when its backend starts (jax 0.10.2).

    Where jax logs it by another name it is logged as ever.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_no_missing_driver)


def _is_no_missing_driver(record: logging.LogRecord) -> bool:
    return not (record.levelno == logging.ERROR and "xla_cuda" in record.getMessage())
