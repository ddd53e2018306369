"""Storage of torch.distributed.checkpoint with a checksum per file, to detect corrupt checkpoints."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner

from torch_xla._engine.compat import serialization
from torch_xla._engine.diagnostics import metrics

_METADATA = ".metadata"
_SUM = ".crc32"
_PIECE = 1 << 24


class CheckpointError(RuntimeError):
    """A checkpoint cannot be loaded; the message names the corrupt or missing file."""


def is_url(path: str) -> bool:
    """Return whether a path is an fsspec URL, such as ``gs://bucket/run``."""
    return "://" in path


def _checksum(fs: Any, path: Any) -> str:
    return _checksum_of(fs.create_stream, path)


def _checksum_of(open_file: Callable[[Any, str], Any], path: Any) -> str:
    total = 0
    with open_file(path, "rb") as file:
        while piece := file.read(_PIECE):
            total = zlib.crc32(piece, total)
    return f"{total:08x}"


def _write_checksum(fs: Any, path: Any) -> None:
    with fs.create_stream(f"{path}{_SUM}", "wb") as file:
        file.write(_checksum(fs, path).encode())


def _verify_checksum(fs: Any, path: Any) -> None:
    """Raise CheckpointError if a file is missing or does not match its checksum. A file without a checksum passes."""
    if not fs.exists(path):
        raise CheckpointError(f"{path} is missing; the checkpoint cannot be loaded")
    if fs.exists(f"{path}{_SUM}"):
        with fs.create_stream(f"{path}{_SUM}", "rb") as file:
            wanted = file.read().decode(errors="replace").strip()
        if _checksum(fs, path) != wanted:
            raise CheckpointError(f"{path}: checksum mismatch; the checkpoint is corrupt and cannot be loaded")


class _ChecksumWriterMixin:
    """A writer that stores a checksum beside each of its files."""

    fs: Any
    path: Any

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        done = super().write_data(plan, planner)  # type: ignore[misc]
        for name in {result.storage_data.relative_path for result in done.wait()}:
            _write_checksum(self.fs, self.fs.concat_path(self.path, name))
        return done

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)  # type: ignore[misc]
        _write_checksum(self.fs, self.fs.concat_path(self.path, _METADATA))


class _ChecksumReaderMixin:
    """A reader that verifies each file before reading it."""

    fs: Any
    path: Any
    storage_data: Any

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self.fs.concat_path(self.path, _METADATA)
        metrics.count("CheckpointReadsRemote")
        _verify_checksum(self.fs, path)
        try:
            found: Metadata = super().read_metadata(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:  # unpickling may raise any exception
            raise CheckpointError(f"{path} is corrupt: {error!r}; the checkpoint cannot be loaded") from error
        return found

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        names = sorted({self.storage_data[item.storage_index].relative_path for item in plan.items})
        metrics.count("CheckpointReadsRemote", len(names))
        for name in names:
            _verify_checksum(self.fs, self.fs.concat_path(self.path, name))
        return super().read_data(plan, planner)  # type: ignore[misc]


class _Writer(_ChecksumWriterMixin, FileSystemWriter):
    pass


class _Reader(_ChecksumReaderMixin, FileSystemReader):
    pass


class _SnapshotWriter(_Writer):
    """A writer that raises the OSError of a failed write, with its errno, also where torch raises another error."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        with _unwrapped_os_errors():
            return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: Any) -> None:
        with _unwrapped_os_errors():
            super().finish(metadata, results)


@contextmanager
def _unwrapped_os_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # torch.save to a full disk raises RuntimeError while it handles the OSError.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or cause is error:
            raise
        raise cause from None


def writer(path: str, threads: int) -> Any:
    """Return the writer of a checkpoint's files in a folder."""
    if not is_url(path):
        return _Writer(path, thread_count=threads, single_file_per_rank=True)
    kind: type = type("_UrlWriter", (_ChecksumWriterMixin, serialization.fsspec_writer()), {})
    return kind(path, thread_count=threads, single_file_per_rank=True, sync_files=False)


def snapshot_writer(path: str, threads: int) -> Any:
    """Return the writer of a snapshot's files in a folder of this host; it raises OSError if the disk is full.

    Files are not flushed to the disk: a snapshot is of no use on a host that lost power and its last files, and the
    checksums detect it.
    """
    return _SnapshotWriter(path, thread_count=threads, single_file_per_rank=True, sync_files=False)


def reader(path: str) -> Any:
    """Return the reader of a checkpoint's files; it raises CheckpointError for a corrupt file."""
    if not is_url(path):
        return _Reader(path)
    kind: type = type("_UrlReader", (_ChecksumReaderMixin, serialization.fsspec_reader()), {})
    return kind(path)


def save(state_dict: Any, storage: Any, planner: SavePlanner, group: Any) -> None:
    """Call dcp.save without its warning about a single process."""
    if group is not None:
        dcp.save(state_dict, storage_writer=storage, planner=planner, process_group=group)
        return
    planner.set_up_planner(state_dict, storage.storage_meta(), True)
    storage.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([storage.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(storage.prepare_global_plan(plans)[0])
    storage.finish(metadata, [storage.write_data(plan, planner).wait()])


def load(state_dict: Any, storage: Any, planner: LoadPlanner, group: Any) -> None:
    """Call dcp.load without its warning about a single process.

    Raises:
      CheckpointError: a corrupt file.
    """
    if group is not None:
        try:
            dcp.load(state_dict, storage_reader=storage, planner=planner, process_group=group)
        except dcp.CheckpointException as error:
            for failure, _ in error.failures.values():
                if isinstance(failure, CheckpointError):
                    raise failure from None
            raise
        return
    metadata = storage.read_metadata()
    planner.set_up_planner(state_dict, metadata, True)
    storage.set_up_storage_reader(metadata, True)
    plans = planner.create_global_plan([storage.prepare_local_plan(planner.create_local_plan())])
    storage.read_data(planner.finish_plan(storage.prepare_global_plan(plans)[0]), planner).wait()


def is_finished(fs: Any, folder: str) -> bool:
    """Return whether a folder has a complete checkpoint; ``fs`` is an fsspec filesystem."""
    return bool(fs.exists(f"{folder}/{_METADATA}"))


def is_intact(fs: Any, folder: str) -> bool:
    """Return whether all files of a complete checkpoint match their checksums; ``fs`` is an fsspec filesystem."""
    for path in fs.ls(folder, detail=False):
        if path.endswith(_SUM):
            file = path.removesuffix(_SUM)
            if not fs.exists(file) or _checksum_of(fs.open, file) != fs.cat_file(path).decode(errors="replace").strip():
                return False
    return True


def is_intact_file(path: str) -> bool:
    """Return whether a local file matches its checksum; False if it or its checksum is missing."""
    if not os.path.exists(f"{path}{_SUM}"):
        return False
    try:
        _verify_checksum(FileSystem(), path)
    except (CheckpointError, OSError):
        return False
    return True


def completion_time(fs: Any, folder: str) -> float:
    """Return the completion time of a checkpoint in seconds; 0 if the filesystem stores no times."""
    try:
        time: datetime = fs.modified(f"{folder}/{_METADATA}")
    except NotImplementedError:
        return 0.0
    return time.timestamp()


def remove(fs: Any, folder: str) -> None:
    """Delete a checkpoint, its metadata first: an interrupted call leaves no partial checkpoint that looks complete."""
    if fs.exists(f"{folder}/{_METADATA}"):
        fs.rm(f"{folder}/{_METADATA}")
    fs.rm(folder, recursive=True)


def replace(written: str, folder: str) -> None:
    """Rename a complete local folder to its final name, replacing an existing checkpoint of that name."""
    aside = backup_path(folder)
    if os.path.exists(folder):
        os.rename(folder, aside)
    os.rename(written, folder)


def backup_path(folder: str) -> str:
    """Return the temporary name of a checkpoint while another one replaces it."""
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.before")
