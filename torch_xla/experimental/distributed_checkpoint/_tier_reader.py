"""Read a snapshot from the folders of its hosts: each process opens the files it has, and receives ranges of others."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from torch_xla._engine.diagnostics import metrics
from torch_xla.experimental.distributed_checkpoint import _peer_copy, _process_group
from torch_xla.experimental.distributed_checkpoint._checksummed_storage import CheckpointError
from torch_xla.experimental.distributed_checkpoint._snapshots import Snapshot

_CHUNK = 64 << 20  # bytes of one message

#: Offset and size in bytes.
Range = tuple[int, int]


class TierReader(FileSystemReader):
    """A reader of a snapshot of which each process has some files; every file is held by some process.

    ``read_data`` is collective: each process announces the ranges that its plan needs of files it does not have, and a
    holder of the file sends them. The order of the messages is the same on all processes: by file, then by receiver.

    Args:
      snapshot: the holders of each file.
      paths: the files of this process, by name.
      metadata: the content of the metadata file.
      group: the group of the calling thread; None: one process.
    """

    def __init__(self, snapshot: Snapshot, paths: dict[str, str], metadata: bytes, group: _process_group.Group) -> None:
        super().__init__(".")
        self._snapshot, self._paths, self._group = snapshot, paths, group
        self._files = _Files(paths, metadata)
        self.fs = self._files
        self.local_files = self.peer_files = 0

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """See StorageReader."""
        items: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            items.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        errors: list[Exception] = []
        mine = [name for name in items if name in self._paths]
        for name in mine:
            self._load(plan, planner, items[name], errors)
        self.local_files = len(mine)
        metrics.count("CheckpointReadsLocal", len(mine))
        remote = {name: self._ranges(found) for name, found in items.items() if name not in self._paths}
        self._exchange(remote, lambda name: self._load(plan, planner, items[name], errors), errors)
        self.peer_files = len(remote)
        metrics.count("CheckpointReadsPeer", len(remote))
        if _process_group.any_process(self._group, bool(errors)):
            raise errors[0] if errors else CheckpointError("another process could not read its part of the snapshot")
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _load(self, plan: LoadPlan, planner: LoadPlanner, items: list[ReadItem], errors: list[Exception]) -> None:
        """Read the items of one file; the other processes still wait for messages if this fails."""
        try:
            super().read_data(dataclasses.replace(plan, items=items), planner)
        except Exception as error:
            errors.append(error)

    def _ranges(self, items: list[ReadItem]) -> list[Range]:
        """Return the distinct ranges of a file that hold the items."""
        stored = (self.storage_data[item.storage_index] for item in items)
        return sorted({(info.offset, info.length) for info in stored})

    def _exchange(self, wanted: dict[str, list[Range]], loaded: Callable[[str], None], errors: list[Exception]) -> None:
        """Send and receive ranges; call ``loaded`` with each file that this process has received. Collective."""
        if self._group is None:
            return
        rank, requests = _process_group.rank(self._group), _process_group.all_gather(self._group, wanted)
        for name in sorted({name for request in requests for name in request}):
            holders = self._snapshot.holders[name]
            for receiver, request in enumerate(requests):
                source, ranges = holders[receiver % len(holders)], request.get(name, [])
                if rank == source and ranges:
                    self._send(name, ranges, receiver, errors)
                elif rank == receiver and ranges:
                    with self._files.received(name, self._receive(ranges, source)):
                        loaded(name)

    def _send(self, name: str, ranges: list[Range], receiver: int, errors: list[Exception]) -> None:
        for start, size in _messages(ranges):
            try:
                chunk = _peer_copy.read_bytes(self._paths[name], start, size)
            except OSError as error:  # the receiver waits for this message; all processes then raise
                errors.append(error)
                chunk = torch.zeros(size, dtype=torch.uint8)
            dist.send(chunk, group=self._group, group_dst=receiver)

    def _receive(self, ranges: list[Range], source: int) -> dict[int, torch.Tensor]:
        received = {}
        for start, size in ranges:
            received[start] = values = torch.empty(size, dtype=torch.uint8)
            for offset, length in _messages([(0, size)]):
                dist.recv(values[offset : offset + length], group=self._group, group_src=source)
        return received


def _messages(ranges: list[Range]) -> Iterator[Range]:
    for start, size in ranges:
        for offset in range(0, size, _CHUNK):
            yield start + offset, min(_CHUNK, size - offset)


class _Files(FileSystem):
    """The files of a snapshot as FileSystemReader opens them: on this host, or received and in memory."""

    def __init__(self, paths: dict[str, str], metadata: bytes) -> None:
        self._paths, self._metadata = paths, metadata
        self._received: dict[str, dict[int, torch.Tensor]] = {}

    @contextmanager
    def received(self, name: str, ranges: dict[int, torch.Tensor]) -> Iterator[None]:
        """In the block, the file can be read in these ranges (values by offset)."""
        self._received[name] = ranges
        try:
            yield
        finally:
            del self._received[name]

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """See FileSystemBase."""
        name = os.path.basename(path)
        if name == ".metadata":
            yield io.BytesIO(self._metadata)
        elif name in self._received:
            yield _Ranges(self._received[name])
        else:
            with open(self._paths[name], mode) as file:
                yield cast(io.IOBase, file)


class _Ranges(io.RawIOBase):
    """A file of which some ranges are in memory. A read begins in a range, and ends with it at the latest."""

    def __init__(self, ranges: dict[int, torch.Tensor]) -> None:
        self._ranges, self._position = ranges, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a file that is partly in memory is unknown")
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        for start, values in self._ranges.items():
            rest = values[self._position - start :] if start <= self._position < start + len(values) else values[:0]
            if len(rest):
                count = min(len(view), len(rest))
                view[:count] = rest.numpy().data[:count]
                self._position += count
                return count
        return 0
