"""Process group of ``torch.distributed`` for xla devices: ``import torch_xla`` registers the backend ``xla``.

    import torch.distributed as dist
    import torch_xla

    dist.init_process_group("xla", init_method="xla://")    # under spawn, torch_xla.launch or torchrun

spawn or torchrun has started the processes. A call is recorded together with the pending graph of its inputs, and runs
immediately, as on other devices: ranks need not read the results. (The collectives of ``xm``, and the averaging of
DistributedDataParallel, wait for the step barrier and run with the step.) In a group without all ranks it runs only on
the devices of its members, so that other ranks need not take part. A CPU tensor is transferred through the device;
pickled objects (``all_gather_object`` and the like) are not, because a device would compile a program for each size.
The Work that a call returns is complete: reading the value waits for it. Only sends and receives wait for ``wait()``,
or for the next collective, and then run together (see _point_to_point.py). A send that is never waited for runs at the
end of the process at the latest; ``torch_xla.sync()`` does not run it.
"""

# torch declares a group's methods with several signatures; torch.distributed calls them with the ones below.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_xla._engine.base.import_hooks import on_import
from torch_xla._engine.compat import distributed as compat
from torch_xla._engine.device import devices
from torch_xla._engine.execution.eager_collectives import EagerCollectives
from torch_xla._engine.job import coordination, replicas
from torch_xla._engine.job import rendezvous as _rendezvous
from torch_xla._engine.parallel import collectives
from torch_xla.distributed import _ddp, _object_collectives, _point_to_point, _uneven_all_to_all

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "mul",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "and",
    dist.ReduceOp.BOR: "or",
}

Tensors = list[torch.Tensor]


def _completed_work(value: Any) -> dist.Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    work: dist.Work = compat.work_from_future(future)
    return work


class ProcessGroupXla(dist.ProcessGroup):
    """A process group over the devices of its ranks. Created by torch.distributed; lives while it is registered."""

    def __init__(self, options: Any, _: Any = None) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._rank, self._size = options.group_rank, options.group_size
        self._ordinals = list(options.global_ranks_in_group) or list(range(self._size))
        _check_world(self._ordinals)
        whole = self._size == replicas.world_size()
        self._groups = None if whole else collectives.PartialGroup([self._ordinals])

    # Queries of torch.distributed besides collectives.

    def getBackendName(self) -> str:
        return "xla"

    def size(self) -> int:
        return int(self._size)

    def rank(self) -> int:
        return int(self._rank)

    @property
    def group_name(self) -> str:
        return compat.group_name(self)

    #: torch asks the backend of a device that was bound with init_process_group(device_id=...).
    supports_splitting = False

    def _get_backend(self, device: torch.device) -> Any:
        # Collectives take CPU tensors, too.
        return self if torch.device(device).type in ("xla", "cpu") else super()._get_backend(device)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("xla")]

    # Implementation of collectives.

    def _scope(self) -> EagerCollectives:
        _point_to_point.run_pending()
        return EagerCollectives(self._groups is not None)

    def _reduction(self, op: Any) -> tuple[str, float]:
        kind = op.op if hasattr(op, "op") else op
        if kind not in _REDUCTIONS:
            raise NotImplementedError(
                f"xla process group: {kind} is not supported; supported are {[str(k) for k in _REDUCTIONS]}"
            )
        return _REDUCTIONS[kind], 1.0 / self._size if kind == dist.ReduceOp.AVG else 1.0

    def _all_reduce(self, tensors: Sequence[torch.Tensor], op: Any) -> Tensors:
        name, scale = self._reduction(op)
        if self._size == 1:
            return [tensor.clone() for tensor in tensors]
        return collectives.all_reduce(name, _on_xla(tensors), scale, self._groups)

    def _all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-gather to [size, *shape]."""
        (value,) = _on_xla([tensor])
        row = value.detach().unsqueeze(0)
        return row if self._size == 1 else collectives.all_gather(row, 0, self._groups)

    def _reduce_scatter(self, rows: torch.Tensor, op: Any) -> torch.Tensor:
        """Return this rank's row of the reduction of [size, *shape]."""
        name, scale = self._reduction(op)
        if self._size == 1:
            return rows[0]
        (value,) = _on_xla([rows])
        part = collectives.reduce_scatter(name, value, 0, self._groups)[0]
        return part if scale == 1.0 else part * scale

    def _all_to_all(self, rows: torch.Tensor) -> torch.Tensor:
        """Exchange rows of [size, *shape]: row i goes to rank i, and row i comes from rank i."""
        (value,) = _on_xla([rows])
        return value if self._size == 1 else collectives.all_to_all(value, 0, 0, self._groups)

    def _all_gather_object_bytes(self, tensors: Tensors) -> list[bytes]:
        """All-gather the bytes of the tensors over the host network."""
        _point_to_point.run_pending()
        return _object_collectives.all_gather_bytes(self.group_name, self._ordinals, tensors)

    # Collectives, by the names that torch.distributed and its C++ code call.

    def average(self, tensors: Tensors) -> None:
        """Average the tensors, in place, with the step.

        Args:
          tensors: xla tensors, such as gradients.
        """
        collectives.copy_into(tensors, self._all_reduce(tensors, dist.ReduceOp.AVG))

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        with self._scope():
            op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
            collectives.copy_into(tensors, self._all_reduce(tensors, op))
        return _completed_work(tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        with self._scope():
            reduced = self._all_reduce(tensors, opts.reduceOp)
            if self._rank == opts.rootRank:
                collectives.copy_into(tensors, reduced)
        return _completed_work(tensors)

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        if _object_collectives.uses_host_network(tensors):
            given = self._all_gather_object_bytes(tensors if self._rank == opts.rootRank else [])
            _object_collectives.copy_bytes_into(tensors, given[opts.rootRank])
        elif self._size > 1:
            with self._scope():
                collectives.copy_into(tensors, collectives.broadcast(_on_xla(tensors), opts.rootRank, self._groups))
        return _completed_work(tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        if len(inputs) == 1 and _object_collectives.uses_host_network([*inputs, *outputs[0]]):
            for target, data in zip(outputs[0], self._all_gather_object_bytes(inputs), strict=True):
                _object_collectives.copy_bytes_into([target], data)
            return _completed_work(outputs)
        with self._scope():
            for targets, value in zip(outputs, inputs, strict=True):
                collectives.copy_into(targets, list(self._all_gather(value)))
        return _completed_work(outputs)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        # Here the outer list has one entry per rank.
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        if output.device.type == "cpu" and _object_collectives.uses_host_network(
            [input]
        ):  # objects of all_gather_object, since torch 2.15
            _object_collectives.copy_bytes_into([output], b"".join(self._all_gather_object_bytes([input])))
            return _completed_work(output)
        with self._scope():
            collectives.copy_into([output], [self._all_gather(input).reshape(output.shape)])
        return _completed_work(output)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, input, opts)
        return _completed_work(outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        with self._scope():
            for output, parts in zip(outputs, inputs, strict=True):
                _check_same_shapes("reduce_scatter", [output, *parts])
                collectives.copy_into([output], [self._reduce_scatter(torch.stack(parts), opts.reduceOp)])
        return _completed_work(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        with self._scope():
            rows = input.detach().reshape(self._size, *output.shape)
            collectives.copy_into([output], [self._reduce_scatter(rows, opts.reduceOp)])
        return _completed_work(output)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, input, opts)
        return _completed_work(outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        parts = _uneven_all_to_all.SplitSizes([t.numel() for t in inputs], [t.numel() for t in outputs])
        with self._scope():
            received = self._all_to_all_uneven("all_to_all", torch.cat([t.detach().flatten() for t in inputs]), parts)
            pieces = received.split(parts.received)
            collectives.copy_into(outputs, [p.reshape(t.shape) for p, t in zip(pieces, outputs, strict=True)])
        return _completed_work(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int] | None,
        input_splits: list[int] | None,
        opts: Any = None,
    ) -> dist.Work:
        with self._scope():
            if output_splits or input_splits:  # on all ranks or on none
                given = functools.partial(_uneven_all_to_all.resolve_splits, "all_to_all_single", self._size)
                parts = _uneven_all_to_all.SplitSizes(
                    given(len(input), input_splits or []), given(len(output), output_splits or [])
                )
                received = self._all_to_all_uneven("all_to_all_single", input.detach(), parts)
            else:
                rows = input.detach().reshape(self._size, input.shape[0] // self._size, *input.shape[1:])
                received = self._all_to_all(rows).reshape(output.shape)
            collectives.copy_into([output], [received])
        return _completed_work(output)

    # Names in torch 2.11 and 2.12.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _all_to_all_uneven(self, op: str, rows: torch.Tensor, parts: _uneven_all_to_all.SplitSizes) -> torch.Tensor:
        """Return the rows that this rank receives, split after split."""
        (value,) = _on_xla([rows])
        size, even = _uneven_all_to_all.max_split(op, self.group_name, self._ordinals, parts)
        if even:
            return self._all_to_all(value.reshape(self._size, size, *value.shape[1:])).flatten(0, 1)
        return _uneven_all_to_all.all_to_all_uneven(value, parts, size, self._all_to_all)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        if _object_collectives.uses_host_network(inputs):
            said = self._all_gather_object_bytes(inputs)
            for target, data in zip(outputs[0] if self._rank == opts.rootRank else [], said, strict=False):
                _object_collectives.copy_bytes_into([target], data)
            return _completed_work(outputs)
        with self._scope():
            rows = list(self._all_gather(inputs[0]))
            if self._rank == opts.rootRank:
                collectives.copy_into(outputs[0], rows)
        return _completed_work(outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        if _object_collectives.uses_host_network(outputs):
            said = self._all_gather_object_bytes(inputs[0] if self._rank == opts.rootRank else [])[opts.rootRank]
            size = outputs[0].nbytes
            _object_collectives.copy_bytes_into(outputs, said[self._rank * size : (self._rank + 1) * size])
            return _completed_work(outputs)
        with self._scope():
            parts = inputs[0] if self._rank == opts.rootRank else [torch.zeros_like(outputs[0])] * self._size
            collectives.copy_into(outputs, [self._all_to_all(torch.stack(parts))[opts.rootRank]])
        return _completed_work(outputs)

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> dist.Work:
        (value,) = _on_xla(tensors[:1])
        pair = self._ordinals[self._rank], self._ordinals[target]
        return _point_to_point.enqueue_message(_point_to_point.Message(*pair, value), tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> dist.Work:
        (value,) = _on_xla([torch.zeros_like(tensors[0])])
        pair = self._ordinals[source], self._ordinals[self._rank]
        return _point_to_point.enqueue_message(_point_to_point.Message(*pair, value, tensors[0]), tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        raise NotImplementedError("xla process group: recv without a source is not supported; pass the source rank")

    def barrier(self, opts: Any = None) -> dist.Work:
        _point_to_point.run_pending()
        _rendezvous.rendezvous(f"barrier {self.group_name}", b"", self._ordinals)
        return _completed_work([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier()


def _on_xla(tensors: Sequence[torch.Tensor]) -> Tensors:
    return [t.detach() if t.device.type == "xla" else t.detach().to("xla") for t in tensors]


def _check_same_shapes(op: str, tensors: Sequence[torch.Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) > 1:
        raise ValueError(f"xla process group: {op} requires an output and inputs of the same shape, got {shapes}")


def _check_world(ordinals: Sequence[int]) -> None:
    if max(ordinals) >= replicas.world_size():
        raise RuntimeError(
            f"init_process_group('xla'): the group has ranks up to {max(ordinals)}, but this process is one of "
            f"{replicas.world_size()}. Start the processes with torchrun, torch_xla.launch or xmp.spawn"
        )
    devices.devices()  # initializes the job


def _xla_rendezvous_handler(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Rendezvous handler of ``init_method="xla://"``: rank, world size and store of the launcher."""
    count = replicas.process_count()
    store: dist.Store = coordination.job_store() if count > 1 else dist.HashStore()
    if replicas.is_simulating_replicas():
        yield store, 0, replicas.world_size()
        return
    yield dist.PrefixStore("init_process_group", store), replicas.process_index(), count


def new_xla_process_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None) -> Any:
    """Create a group of the xla backend; equivalent to torch.distributed.new_group.

    Args:
      ranks: the ranks of the group; None: all.
      timeout, backend, pg_options: see torch.distributed.new_group.
    """
    return dist.new_group(ranks, timeout, backend, pg_options)


def _prepare_mesh() -> bool:
    """Return whether meshes use process groups of this backend (one device per process): torch's DTensor applies.

    Under torchrun the first mesh creates the default group, as for other devices.
    """
    if replicas.is_spmd():
        return False
    if not dist.is_initialized() and dist.is_torchelastic_launched():
        dist.init_process_group("xla")
    return compat.has_default_group("xla")


if not compat.is_registered("xla"):
    dist.Backend.register_backend("xla", ProcessGroupXla, extended_api=True, devices=["xla"])
    dist.register_rendezvous_handler("xla", _xla_rendezvous_handler)
    dist.register_rendezvous_handler("pjrt", _xla_rendezvous_handler)  # its name until PyTorch/XLA 2.0
    compat.exclude_from_flight_recorder("xla")
    on_import("torch.distributed.device_mesh", lambda _: compat.create_mesh_groups(_prepare_mesh))
    _ddp.patch_ddp()
    _object_collectives.use_cpu_for_objects(ProcessGroupXla)
    # Functional collectives wait by a tensor's storage, which xla tensors do not have; there is nothing to wait for.
    warnings.filterwarnings("ignore", "Registering collective work for tensor without storage", UserWarning)
    _functional = torch.library.Library("_c10d_functional", "IMPL")
    _functional.impl("wait_tensor", lambda tensor: tensor, "XLA")
