"""Snapshots in a folder of a host: the files of one step that a process holds, and a manifest that identifies them.

    local_path/RUN/LOCAL_RANK/STEP/    __1_0.distcp, __1_0.distcp.crc32    the shards of process 1, which has the folder
                                       __0_0.distcp, __0_0.distcp.crc32    a copy of those of process 0
                                       .metadata, .metadata.crc32          of torch.distributed.checkpoint
                                       .snapshot                           the manifest

The folders of all processes together are a checkpoint. It is complete if they have every file of the manifest under the
same id: two saves of a step, before and after a restart, have different ids, and their files are not mixed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from torch_xla.experimental.distributed_checkpoint import _checksummed_storage, _process_group

_MANIFEST = ".snapshot"


@dataclass(frozen=True)
class Manifest:
    """Identifies a snapshot; equal in the folders of all processes.

    ``time`` is that of process 0 in seconds, ``files`` are those of all processes.
    """

    step: int
    id: str
    time: float
    files: tuple[str, ...]

    def write(self, folder: str) -> None:
        """Write the manifest into a folder."""
        with open(os.path.join(folder, _MANIFEST), "w") as file:
            json.dump(asdict(self), file)


@dataclass(frozen=True)
class HeldSnapshot:
    """The files of a snapshot that a process has: path by name."""

    manifest: Manifest
    paths: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the job: the ranks that hold each of its files."""

    manifest: Manifest
    holders: dict[str, tuple[int, ...]]

    @property
    def missing(self) -> list[str]:
        """The files that no process holds."""
        return [name for name in self.manifest.files if not self.holders.get(name)]


def list_held(folders: Sequence[str]) -> list[HeldSnapshot]:
    """Return the snapshots with a manifest in these folders; the files of folders with the same id are merged."""
    found: dict[str, HeldSnapshot] = {}
    for path, manifest in _snapshot_folders(folders):
        if manifest is not None:
            held = found.setdefault(manifest.id, HeldSnapshot(manifest, {}))
            names = set(os.listdir(path)).intersection(manifest.files)
            held.paths.update((name, os.path.join(path, name)) for name in names)
    return list(found.values())


def process_folders(run: str, index: int, count: int) -> list[str]:
    """Return the folders of a run that process ``index`` of ``count`` on this host reads.

    These are its own, and those of processes that an earlier job had more on this host.
    """
    others = [name for name in _subfolders(run) if name.isdigit() and int(name) % count == index]
    return [os.path.join(run, name) for name in sorted({str(index), *others}, key=int)]


def remove_old(folders: Sequence[str], keep: int) -> None:
    """Remove all but the newest ``keep`` snapshots."""
    newest = sorted((held.manifest for held in list_held(folders)), key=lambda manifest: manifest.time)[-keep:]
    retained = {manifest.id for manifest in newest}
    for path, manifest in _snapshot_folders(folders):
        if manifest is not None and manifest.id not in retained:
            remove(path)


def remove_unfinished(folders: Sequence[str]) -> None:
    """Remove the folders that killed processes left: those without a manifest, or not renamed."""
    for path, manifest in _snapshot_folders(folders):
        if manifest is None:
            remove(path)


def remove(folder: str) -> None:
    """Delete a folder, its manifest first: an interrupted call leaves no snapshot that looks complete."""
    with suppress(OSError):  # a later write into the folder fails, and is reported
        os.unlink(os.path.join(folder, _MANIFEST))
    shutil.rmtree(folder, ignore_errors=True)


def gather(group: _process_group.Group, held: Sequence[HeldSnapshot]) -> list[Snapshot]:
    """Return the snapshots of all processes, the newest first. Collective."""
    found: dict[str, Snapshot] = {}
    names = [(snapshot.manifest, tuple(snapshot.paths)) for snapshot in held]
    for rank, snapshots in enumerate(_process_group.all_gather(group, names)):
        for manifest, files in snapshots:
            holders = found.setdefault(manifest.id, Snapshot(manifest, {})).holders
            for name in files:
                holders[name] = (*holders.get(name, ()), rank)
    return sorted(found.values(), key=lambda one: (one.manifest.step, one.manifest.time), reverse=True)


def verify(group: _process_group.Group, snapshot: Snapshot, held: Sequence[HeldSnapshot]) -> Snapshot:
    """Return the snapshot without the copies that do not match their checksums. Collective: each reads its own."""
    mine = next((one for one in held if one.manifest.id == snapshot.manifest.id), HeldSnapshot(snapshot.manifest, {}))
    intact = {name: path for name, path in mine.paths.items() if _checksummed_storage.is_intact_file(path)}
    return gather(group, [HeldSnapshot(snapshot.manifest, intact)])[0]


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []


def _snapshot_folders(folders: Sequence[str]) -> Iterator[tuple[str, Manifest | None]]:
    """Yield each subfolder; with its manifest if it is a finished snapshot."""
    for folder in folders:
        for name in _subfolders(folder):
            path = os.path.join(folder, name)
            yield path, _read_manifest(path) if name.isdigit() else None


def _read_manifest(folder: str) -> Manifest | None:
    """Return the manifest of a folder; None if it has none, or the host lost power while it was written."""
    try:
        with open(os.path.join(folder, _MANIFEST)) as file:
            fields = json.load(file)
        return Manifest(fields["step"], fields["id"], fields["time"], tuple(fields["files"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
