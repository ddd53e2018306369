"""Checkpoints of several processes, and of processes that are killed while they write one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import torch_xla.core.xla_model as xm
from tests.programs import checkpoint_programs
from tests.support.helpers import run_script
from torch_xla._engine.base import atomic_file


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
def test_save_with_two_processes_load_with_one(tmp_path: Path) -> None:
    checkpoint_programs.save(checkpoint_programs.trained(1), tmp_path / "alone")
    spawn = """
        import os, sys
        from pathlib import Path
        import torch.multiprocessing as mp
        import torch_xla
        import torch_xla.distributed.xla_multiprocessing as xmp
        from tests.programs import checkpoint_programs

        folder = Path(os.environ["WHERE"])
        xmp.spawn(checkpoint_programs.save_and_load, args=(folder,), nprocs=2, start_method="fork")
        try:
            xmp.spawn(checkpoint_programs.killed_in_a_checkpoint, (folder / "half",), nprocs=2, start_method="fork")
        except mp.ProcessExitedException as error:
            print(error)
        """
    done = run_script(spawn, check=False, WHERE=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    for name in ("both", "behind"):
        checkpoint_programs.assert_loads(tmp_path / name)
    # A killed rank leaves an incomplete folder, and the other checkpoints unchanged.
    assert done.stdout.endswith("process 1 terminated with signal SIGKILL\n"), "after gloo's output"
    assert list((tmp_path / "half").glob("*.distcp")) and not (tmp_path / "half" / ".metadata").exists()
    with pytest.raises(dcp.api.CheckpointException, match="metadata"):
        checkpoint_programs.assert_loads(tmp_path / "half")
    checkpoint_programs.assert_loads(tmp_path / "both")


def test_a_rank_killed_while_it_saves_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    xm.save({"values": torch.zeros(3)}, path)
    spawn = """
        import os, sys
        import torch.multiprocessing as mp
        import torch_xla
        import torch_xla.distributed.xla_multiprocessing as xmp
        from tests.programs import checkpoint_programs

        try:
            path = os.environ["WHERE"]
            xmp.spawn(checkpoint_programs.killed_while_saving, (path, 8000), nprocs=2, start_method="fork")
        except mp.ProcessExitedException as error:
            print(error)
        """
    done = run_script(spawn, check=False, WHERE=str(path))
    assert done.stdout.endswith("process 0 terminated with signal SIGKILL\n"), done.stderr[-4000:]
    assert torch.load(path)["values"].tolist() == [0] * 3
    (part,) = tmp_path.glob(".x.pt.*.part")
    assert part.stat().st_size == 8000


#: Forks processes that save and are killed after a number of bytes; the old or the new file must be readable.
KILLED = """
    import os, signal, sys
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._engine.base import atomic_file
    from torch_xla.utils import serialization

    sys.path.insert(0, os.environ["ROOT"])
    from tests.programs.checkpoint_programs import Killing

    path, whole = os.environ["WHERE"], os.environ["MODULE"] == "xm"
    save, load = (xm.save, torch.load) if whole else (serialization.save, serialization.load)

    def ending(limit):
        pid = os.fork()
        if pid == 0:
            Killing.limit = limit
            atomic_file.open_temp_file = lambda part: Killing(part, "wb")
            save({"one": torch.ones(5000), "two": torch.ones(5000)}, path)
            os._exit(0)
        return -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    save({"one": torch.zeros(2), "two": torch.zeros(2)}, path)
    for limit in (0, 1, 700, 20_000, 40_000)[:5 if whole else 4]:  # a tensor has 20 KB, the largest file
        assert ending(limit) == signal.SIGKILL, limit
        found = load(path)
        assert found["one"].tolist() == found["two"].tolist() == [0, 0], limit
    assert ending(1 << 20) == 0
    assert load(path)["two"].tolist() == [1.0] * 5000
"""


@pytest.mark.parametrize("module", ["xm", "serialization"])
def test_killed_after_any_number_of_bytes(tmp_path: Path, module: str) -> None:
    run_script(KILLED, MODULE=module, WHERE=str(tmp_path / "x.pt"), ROOT=str(Path(__file__).parents[2]))


def test_files_are_replaced_atomically(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(TypeError), atomic_file.atomic_write(link) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    with atomic_file.atomic_write(link) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "link"]
    with atomic_file.atomic_write("/dev/null") as file:
        file.write(b"nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_temporary_file_names_differ_between_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers that share a filesystem have the same process and thread ids."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("threading.get_ident", lambda: 2)
    path = tmp_path / "file"
    with atomic_file.atomic_write(path) as first:
        first.write(b"first, longer")
        with atomic_file.atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first, longer"
