"""Private interfaces for distributed jobs: torch process groups, jax's coordination service, gloo collectives."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
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
    "the Work object that collectives of torch.distributed return",
    "collectives of torch.distributed raise",
)
_WORLD = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_world",
    "names of process groups, for rendezvous on the host",
    "reading the name of an xla process group raises",
)
_GROUP = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_get_default_group",
    "the default process group",
    "all_gather_object etc. transfer objects through the device, which compiles a program for each size",
)
_OBJECTS = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_get_object_coll_device",
    "all_gather_object etc. stay on the host",
    "objects are transferred through the device, which compiles a program for each size",
)
_PLUGINS = PrivateApi(
    "torch.distributed",
    "Backend._plugins",
    "detection of the registered backend xla",
    "importing torch_xla.distributed.xla_backend a second time, after its module was removed, raises",
)
_SELF_RECORDING = PrivateApi(
    "torch.distributed.distributed_c10d",
    "_FR_SELF_RECORDING_BACKENDS",
    "exclusion of xla groups, which have no C++ backend, from torch's flight recorder",
    "init_process_group('xla') raises 'ProcessGroup name not set', unless TORCH_FR_BUFFER_SIZE=0",
    since="2.15",
)
_JOB = PrivateApi(
    "jax._src.distributed",
    "global_state",
    "the key-value store of a multi-process job",
    "a multi-process job raises at the first use of a device",
)
_GLOO = PrivateApi(
    "jaxlib._jax",
    "make_gloo_tcp_collectives",
    "the network address of this machine for collectives of CPU devices",
    "collectives use the address that the host name resolves to, which other machines may not reach",
)
_CLIENT = PrivateApi("jax._src.xla_bridge", "make_cpu_client", _GLOO.purpose, _GLOO.without)
_FACTORY = PrivateApi("jax._src.xla_bridge", "register_backend_factory", _GLOO.purpose, _GLOO.without)

_FACTORIES = PrivateApi(
    "jax._src.xla_bridge",
    "_backend_factories",
    "hosts without a TPU do not load libtpu",
    "libtpu, if it is installed, prints errors on hosts without a TPU: set PJRT_DEVICE=CPU",
)

_FORK_WARNING = PrivateApi(
    "jax._src.xla_bridge",
    "_at_fork_handler_installed",
    "no warning of jax for each fork: a forked process that uses an xla device raises an error of torch_xla",
    "DataLoader(num_workers=...) prints jax's warning of a deadlock, which does not apply",
)


def work_from_future(future: Any) -> Any:
    """Return a torch.distributed Work that completes with the future."""
    return _WORK.resolve()(future)


def group_name(group: Any) -> str:
    """Return the name under which a process group is registered."""
    return str(_WORLD.resolve().pg_names[group])


def default_group() -> Any:
    """Return the process group of all ranks. Raises ValueError before it is initialized."""
    return _GROUP.resolve()()


def wrap_object_device(wrapper: Callable[..., Any]) -> None:
    """Wrap the function that selects the device of pickled objects: ``wrapper(original, group)``."""
    _OBJECTS.wrap(wrapper)


def is_registered(backend: str) -> bool:
    """Whether a third-party backend is registered with torch.distributed."""
    plugins = _PLUGINS.resolve_or_none()
    return plugins is not None and backend.upper() in plugins


def exclude_from_flight_recorder(backend: str) -> None:
    """Exclude the groups of a backend from torch's flight recorder, which exists since torch 2.15."""
    recording = _SELF_RECORDING.resolve_or_none()
    if recording is not None:
        recording.add(backend)
    elif _SELF_RECORDING.is_missing:
        _SELF_RECORDING.warn_missing()


def coordination_client() -> Any:
    """Return the client of jax's key-value store; None outside a job."""
    return _JOB.resolve().client


def set_gloo_address(address: str, client: Any) -> None:
    """Set the address of the collectives of jax's CPU backend before it starts. Does nothing without gloo."""
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
    "submeshes of an xla DeviceMesh, such as mesh['tensor']",
    "mesh['tensor'] raises AttributeError for an xla mesh",
)
_PART = PrivateApi(
    "torch.distributed.device_mesh",
    "DeviceMesh._get_mesh_tensor_from_full_mesh",
    "the devices of a submesh in a single process without process groups",
    "mesh['tensor'] raises for an xla mesh before init_process_group",
)
_ROOT = PrivateApi(
    "torch.distributed.device_mesh",
    "DeviceMesh._get_root_mesh",
    "the root mesh of a submesh, which XLA needs to shard a tensor over the submesh",
    "sharding a tensor over a submesh raises",
)
_FULLY_SHARD = (
    PrivateApi(
        "torch.distributed.fsdp._fully_shard._fully_shard",
        "fully_shard",
        "torch's FSDP2 on an xla mesh",
        "fully_shard raises for xla",
    ),
    PrivateApi(
        "torch.distributed.fsdp._fully_shard", "fully_shard", "torch's FSDP2 on an xla mesh", "fully_shard raises"
    ),
)


def root_mesh(mesh: Any) -> Any:
    """Return the root DeviceMesh of a submesh, or the mesh itself."""
    return _ROOT.resolve()(mesh)


def allow_submeshes() -> None:
    """Enable ``mesh['name']`` for a DeviceMesh without process groups, as xla meshes are."""

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
    """``"xla"`` as the device type of a mesh; one comparison by torch can be made to return False.

    For a mesh whose device type is ``"xla"``, torch creates no process groups, and passes tensors and modules to this
    package instead of distributing them. For a mesh with process groups, torch's own code does what is needed.
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
    """Make torch's next comparison in the block not recognize a mesh with process groups as an xla mesh."""
    _unseen.next = True
    try:
        yield
    finally:
        _unseen.next = False


def has_process_groups(mesh: Any) -> bool:
    """Whether an xla mesh has process groups."""
    return isinstance(mesh.device_type, _MaskableDeviceType)


def has_default_group(backend: str) -> bool:
    """Whether the default process group exists and has a backend of this name."""
    distributed = torch.distributed
    return distributed.is_initialized() and backend in str(distributed.get_backend_config())


def create_mesh_groups(prepare: Callable[[], bool]) -> None:
    """Create process groups, as for other devices, for each new xla mesh for which ``prepare()`` returns True."""
    kind: Any = torch.distributed.device_mesh.DeviceMesh
    original = kind.__init__
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != "xla" or not prepare():
            original(self, device_type, *args, **kwargs)
            return
        with mask_device_type():
            original(self, _MaskableDeviceType("xla"), *args, **kwargs)

    init._torch_xla = True  # type: ignore[attr-defined]
    kind.__init__ = init


def modules_with_fully_shard() -> list[str]:
    """Return the names of the modules that have fully_shard, with the defining module first."""
    return [*(name.module for name in _FULLY_SHARD), "torch.distributed.fsdp"]


def omit_fork_warning() -> None:
    """Make jax not warn at each fork (as of DataLoader's workers). Call it before jax starts its backend."""
    if _FORK_WARNING.resolve_or_none() is False:
        sys.modules[_FORK_WARNING.module]._at_fork_handler_installed = True  # type: ignore[attr-defined]


def skip_tpu_backend() -> None:
    """Make jax start no TPU backend: libtpu prints errors where there is no TPU. Does nothing after jax has started.

    The platform stays known to jax: Pallas registers lowerings for it. A factory that returns None has no backend.
    """
    factories = _FACTORIES.resolve_or_none()
    if factories is not None and "tpu" in factories:
        factories["tpu"] = dataclasses.replace(factories["tpu"], factory=lambda: None, fail_quietly=True)


def silence_missing_cuda_driver() -> None:
    """Suppress the traceback that jax's CUDA plugin logs without a driver when the backend starts (jax 0.10.2).

    If jax renames the logger, the traceback is logged.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_no_missing_driver)


def _is_no_missing_driver(record: logging.LogRecord) -> bool:
    return not (record.levelno == logging.ERROR and "xla_cuda" in record.getMessage())
