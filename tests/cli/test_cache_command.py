"""``torch-xla cache``: list, prune, export, import; without unpickling anything."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tarfile
import time
from pathlib import Path

import pytest

from torch_xla._engine.compilation.persistent_cache import cache_files
from torch_xla.cli import cache, entry, formatting

INFO = {"created": 0, "platform": "tpu", "device": "TPU v5 lite", "devices": 4, "jax": "0.10.2"}


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (99,)


def add_program(folder: Path, number: int, *, age: float = 0, size: int = 1000) -> str:
    """Add a program with a graph entry; return its name."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    name = f"{digest}.xla"
    payload = pickle.dumps(Bomb()).ljust(size, b"\0")
    (folder / name).write_bytes(cache_files.pack(name, INFO, payload))
    graph = f"{digest[::-1]}.graph"
    (folder / graph).write_text(json.dumps({"graph": graph, "program": name, "calls": {}}))
    for file in (name, graph):
        os.utime(folder / file, (time.time() - age, time.time() - age))
    return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with three programs, used now, an hour ago and ten days ago, one of another format, and a note."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for number, age in enumerate((0, 3600, 10 * 86_400)):
        add_program(folder, number, age=age)
    other = folder / f"{'0' * 64}.xla"
    other.write_bytes(b"torch_xla program 3\n" + bytes(100))
    os.utime(other, (time.time() - 86_400, time.time() - 86_400))
    (folder / "README").write_text("not of the cache")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert entry.main(["cache", *words]) == code
    found = capsys.readouterr()
    return found.err if code else found.out


def programs(folder: Path) -> int:
    return len(list(folder.glob("*.xla")))


def test_list_and_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, first, second, third, fourth, total = run(capsys, "list", "--dir", str(folder)).splitlines()
    assert heading.split() == ["program", "size", "last", "used", "compiled", "for", "jax"]
    assert "4 x tpu, TPU v5 lite" in first and first.endswith("0.10.2")
    assert "1 h ago" in second and "(another version)" in third and "10 d ago" in fourth
    assert total.startswith("4 programs, ") and total.endswith(str(folder))
    assert run(capsys, "size", "--dir", str(folder)).strip() == total
    rows = json.loads(run(capsys, "list", "--json", "--dir", str(folder)))
    assert [row["info"] for row in rows] == [INFO, INFO, None, INFO]


def test_prune(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--dir", str(folder))
    assert run(capsys, "prune", "--unused-for", "9d", "--dry-run", *where).startswith("would remove 1 program, ")
    assert programs(folder) == 4
    assert run(capsys, "prune", "--unused-for", "9d", *where).startswith("removed 1 program, ")
    assert run(capsys, "prune", "--old-formats", *where).startswith("removed 1 program, ")
    assert run(capsys, "prune", "--max-size", "2KB", *where).startswith("removed 1 program, ")
    assert [path.name for path in folder.glob("*.xla")] == [f"{hashlib.sha256(b'0').hexdigest()}.xla"]
    assert len(list(folder.glob("*.graph"))) == 1  # entries of removed programs are removed
    assert (folder / "README").exists()


def test_graph_entries_without_a_program_are_pruned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / f"{hashlib.sha256(b'1').hexdigest()}.xla").unlink()
    run(capsys, "prune", "--max-size", "1GB", "--dir", str(folder))
    assert (programs(folder), len(list(folder.glob("*.graph")))) == (3, 2)


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # not a terminal
    assert "pass --yes" in run(capsys, "clear", "--dir", str(folder), code=2)
    assert programs(folder) == 4
    assert run(capsys, "clear", "--yes", "--dir", str(folder)).startswith("removed 4 programs, ")
    assert [path.name for path in folder.iterdir()] == ["README"]


@pytest.mark.parametrize("name", ["programs.tar", "programs.tar.gz"])
def test_export_and_import(folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / name
    assert run(capsys, "export", str(archive), "--dir", str(folder)).startswith("wrote 3 programs, ")
    assert archive.stat().st_mode & 0o077 == 0
    target = tmp_path / "other"
    for added, known in ((6, 0), (0, 6)):
        text = run(capsys, "import", str(archive), "--dir", str(target))
        assert text == f"added {added} file{'s'[: added != 1]} to {target}; {known} were there\n"
    for path in target.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()
    run(capsys, "export", str(archive), "--used-within", "2h", "--dir", str(folder))
    with tarfile.open(archive) as opened:
        assert sum(member.name.endswith(".xla") for member in opened) == 2


def test_import_from_another_user(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, target = tmp_path / "programs.tar", tmp_path / "other"
    run(capsys, "export", str(archive), "--dir", str(folder))
    archive.chmod(0o666)
    said = run(capsys, "import", str(archive), "--dir", str(target), code=1)
    assert "is writable by other users: its programs would run as your user" in said
    assert not target.exists()
    run(capsys, "import", "--trust", str(archive), "--dir", str(target))
    assert programs(target) == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("../evil.xla", b"", "'../evil.xla' is not a file of the program cache"),
        (f"{'a' * 64}.so", b"", ".so' is not a file of the program cache"),
        (f"{'a' * 64}.xla", cache_files.pack(f"{'b' * 64}.xla", INFO, b"x"), "is damaged or was written by another"),
        (f"{'a' * 64}.graph", b"{", "is damaged or was written by another"),
    ],
)
def test_import_of_foreign_files(
    tmp_path: Path, name: str, text: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, source, target = tmp_path / "programs.tar", tmp_path / "source", tmp_path / "other"
    source.write_bytes(text)
    with tarfile.open(archive, "w") as opened:
        opened.add(source, arcname=name)
    assert said in run(capsys, "import", str(archive), "--dir", str(target), code=1)
    assert not list(target.iterdir())


def test_import_of_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, link = tmp_path / "programs.tar", tmp_path / f"{'a' * 64}.xla"
    link.symlink_to("/etc/passwd")
    with tarfile.open(archive, "w") as opened:
        opened.add(link, arcname=link.name)
    assert "is not a file of the program cache" in run(capsys, "import", str(archive), "--dir", str(tmp_path), code=1)


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Configured:
        XLA_PERSISTENT_CACHE_PATH: Path | None = tmp_path / "mine"

    monkeypatch.setattr(cache.maintenance, "settings", Configured)
    assert run(capsys, "list") == f"no programs: {tmp_path / 'mine'} does not exist\n"
    Configured.XLA_PERSISTENT_CACHE_PATH = Path()
    assert "the cache is disabled" in run(capsys, "list", code=1)


@pytest.mark.parametrize(("text", "size"), [("500MB", 500_000_000), ("2g", 2_000_000_000), ("1.5 KB", 1500), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert formatting.parse_size(text) == size


def test_formats() -> None:
    assert [formatting.format_size(n) for n in (0, 999, 1500, 2_000_000)] == ["0 B", "999 B", "1.5 KB", "2.0 MB"]
    assert [formatting.format_age(n) for n in (0, 59, 60, 7200, 30 * 86_400)] == ["0 s", "59 s", "1 min", "2 h", "30 d"]
