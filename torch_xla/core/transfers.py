"""Copy nested structures of tensors between the CPU and xla devices, and save them to files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import atomic_file
from torch_xla._engine.data_loading.batch_structure import DataWrapper
from torch_xla._engine.execution import executor
from torch_xla._engine.job import rendezvous, replicas


class ToXlaTensorArena:
    """Collect the tensors in a nested structure, convert them in one call, and substitute the results.

    Args:
      convert_fn: takes the list of the collected tensors without duplicates; returns one result per tensor.
      select_fn: returns whether to collect a tensor.
    """

    def __init__(
        self,
        convert_fn: Callable[[list[torch.Tensor]], Sequence[Any]],
        select_fn: Callable[[torch.Tensor], bool],
    ) -> None:
        self._convert, self._select = convert_fn, select_fn

    def transform(self, inputs: Any, in_place: bool = True) -> Any:
        """Return ``inputs`` with its tensors converted.

        Lists and dicts are updated in place, or copied with ``in_place=False``. Tuples, sets, named tuples and
        DataWrappers are rebuilt if an element changes. Other objects are unchanged.

        Args:
          inputs: nested lists, tuples and dictionaries.
          in_place: update lists and dictionaries instead of copying them.
        """
        found: dict[int, torch.Tensor] = {}
        seen: _Seen = {}
        _visit(inputs, lambda t: found.setdefault(id(t), t) if self._select(t) else t, seen)
        tensors = list(found.values())
        results = dict(zip(found, self._convert(tensors), strict=True)) if tensors else {}
        done = {number: _rebuilt(*wrapped, results) for number, wrapped in seen.items() if wrapped is not None}
        return _replace(inputs, results, in_place, done)


#: Visited objects by id. For a DataWrapper: itself and its tensors, since every access may create new tensors.
_Seen = dict[int, tuple[DataWrapper, list[torch.Tensor]] | None]


def _visit(value: Any, tensor: Callable[[torch.Tensor], Any], seen: _Seen) -> None:
    if isinstance(value, torch.Tensor):
        tensor(value)
    elif isinstance(value, DataWrapper) and id(value) not in seen:
        wrapped = list(value.get_tensors())
        seen[id(value)] = value, wrapped
        for one in wrapped:
            tensor(one)
    elif isinstance(value, (dict, list, tuple, set, frozenset)) and id(value) not in seen:
        seen[id(value)] = None
        for item in value.values() if isinstance(value, dict) else value:
            _visit(item, tensor, seen)


def _rebuilt(wrapper: DataWrapper, tensors: list[torch.Tensor], results: dict[int, Any]) -> Any:
    changed = any(id(t) in results for t in tensors)
    return wrapper.from_tensors([results.get(id(t), t) for t in tensors]) if changed else wrapper


def _replace(value: Any, results: dict[int, Any], in_place: bool, done: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return results.get(id(value), value)
    if isinstance(value, DataWrapper):
        return done[id(value)]
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, (dict, list)):
        target = done[id(value)] = value if in_place else copy.copy(value)
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            new = _replace(item, results, in_place, done)
            if new is not item:
                target[key] = new
        return target
    items = [_replace(item, results, in_place, done) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _is_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def _compute(tensors: Sequence[torch.Tensor]) -> None:
    """Run the pending graph of the tensors, one graph per device."""
    for device in {t.device.index for t in tensors}:
        nodes = recorder.bindings().nodes_of([t for t in tensors if t.device.index == device])
        executor.materialize(nodes, device)


def _to_cpu(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU; xla tensors that are the same (tied weights in a state_dict) share one copy."""
    _compute(tensors)
    copies: dict[int, torch.Tensor] = {}
    results: list[torch.Tensor] = []
    for tensor in tensors:
        number = recorder.bindings().tensor_id(tensor)
        if number not in copies:
            copies[number] = tensor.detach().cpu()
        values = copies[number].detach()
        if isinstance(tensor, torch.nn.Parameter):
            results.append(torch.nn.Parameter(values, tensor.requires_grad))
        else:
            results.append(values.requires_grad_(tensor.requires_grad))
    return results


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """Return ``data`` with CPU copies in place of its xla tensors; ``data`` and its containers are unchanged.

    With ``convert=False`` the tensors are computed but not copied: all replicas must request a value that they
    compute jointly.
    """

    def convert_fn(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        if convert:
            return _to_cpu(tensors)
        _compute(tensors)
        return tensors

    return ToXlaTensorArena(convert_fn, _is_xla).transform(data, in_place=False)


def send_cpu_data_to_device(datas: Any, device: torch.device | str, input_sharding: Any = None) -> Any:
    """Move the CPU tensors in ``datas`` to the device, in place in its lists and dicts.

    Args:
      datas: a tensor, or nested lists, tuples and dicts of tensors.
      device: the xla device.
      input_sharding: a spmd.ShardingSpec, or a dict of them with the keys of the dict ``datas``. Tensors that it fits
        are sharded by it; the others are replicated.

    Returns:
      ``datas``; a list for a single tensor.

    Raises:
      TypeError: ``input_sharding`` is of another type.
    """
    if isinstance(input_sharding, dict) and isinstance(datas, dict):
        for key, value in datas.items():
            sent = send_cpu_data_to_device(value, device, input_sharding[key])
            datas[key] = sent[0] if isinstance(value, torch.Tensor) else sent
        return datas
    if input_sharding is not None and not hasattr(input_sharding, "send"):
        raise TypeError(f"send_cpu_data_to_device: input_sharding must be a ShardingSpec, got {input_sharding!r}")
    place = torch.device(device)
    send = torch.Tensor.to if input_sharding is None else input_sharding.send

    def convert_fn(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_restore_parameter(tensor, send(tensor.detach(), place)) for tensor in tensors]

    arena = ToXlaTensorArena(convert_fn, lambda tensor: tensor.device.type == "cpu")
    return arena.transform([datas] if isinstance(datas, torch.Tensor) else datas)


def _restore_parameter(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(values, tensor.requires_grad)
    return values.requires_grad_(tensor.requires_grad)


def check_view_sharing(obj: Any) -> None:
    """Check that no two different tensors in the nested structure share memory on an xla device.

    Args:
      obj: nested lists, tuples, dicts and objects with tensors.

    Raises:
      RuntimeError: two tensors share memory.
    """
    module = recorder.bindings()
    owner: dict[int, int] = {}

    def check(tensor: torch.Tensor) -> None:
        memory = module.storage_id(tensor) if _is_xla(tensor) else 0
        if memory:
            number = module.tensor_id(tensor)
            first = owner.setdefault(memory, number)
            if first != number:
                raise RuntimeError(f"Tensor ID {number} is sharing a view with tensor ID {first}")

    _visit(obj, check, {})


def is_writer(master_only: bool = True, global_master: bool = False) -> bool:
    """Return whether this replica writes a file: every replica, the first of each host, or the first of all."""
    ordinal = replicas.global_ordinal() if global_master else replicas.local_ordinal()
    return not master_only or ordinal == 0


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Save ``data`` as torch.save does, with CPU copies in place of its xla tensors.

    A file at a path is written atomically: an existing file remains until the new one is complete, also if this process
    is killed. All replicas must call this function: they jointly compute the saved values, and it returns after the
    writing replicas have finished.

    Args:
      data: any object that torch.save takes. xla tensors in lists, tuples and dicts are copied; they may be views.
      file_or_path: a path, or a file opened for writing bytes.
      master_only: only the first replica of each host writes.
      global_master: with ``master_only``, only the first replica of the job writes.

    Raises:
      RuntimeError: another replica could not write. The replica that could not write raises its original error.

    Examples:
      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> xm.save({"model": model.state_dict(), "step": 7}, "checkpoint.pt")
      >>> state = torch.load("checkpoint.pt")
      >>> state["step"], state["model"]["weight"].device
      (7, device(type='cpu'))
    """
    write = is_writer(master_only, global_master)
    values = _maybe_convert_to_cpu(data, convert=write)
    with barrier_scope("xm.save", file_or_path):
        if write:
            atomic_torch_save(values, file_or_path)


def atomic_torch_save(values: Any, file_or_path: Any) -> None:
    """Call torch.save; for a path, write a temporary file and rename it."""
    if isinstance(file_or_path, (str, os.PathLike)):
        with atomic_file.atomic_write(file_or_path) as file:
            torch.save(values, file)
    else:
        torch.save(values, file_or_path)


@contextmanager
def barrier_scope(what: str, where: Any) -> Iterator[None]:
    """Wait at the end of the block for all replicas. Raises RuntimeError if another replica raised an error in it."""
    try:
        yield
    except Exception as error:
        rendezvous.rendezvous(what, f"{type(error).__name__}: {error}".encode())
        raise
    said = rendezvous.rendezvous(what, b"")
    failed = [(ordinal, text.decode()) for ordinal, text in enumerate(said) if text]
    if failed:
        raise RuntimeError(f"{what}({where!r}): replica {failed[0][0]} could not write: {failed[0][1]}")
