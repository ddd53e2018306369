"""A folder that is not empty: second runs, other flags, sources and users, leftovers, and who may write to it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import torch_xla
from tests.support import fast_compile_flags
from tests.support.helpers import Counts, counts, run_script
from torch_xla._engine.base import private_folder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import storage
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.recorder import build, device_guard_library

CACHE = (
    "PersistentCacheHit",
    "PersistentCacheGraphHit",
    "PersistentCacheMiss",
    "PersistentCacheDeserializeFailure",
    "PersistentCacheWriteFailure",
)

#: Runs a program and prints how it was found.
RUN = """
    import os, warnings, torch, torch_xla
    import torch_xla.debug.metrics as met

    def run(size):
        assert torch.ones(size).to("xla").mul(3.0).sum().item() == 3 * size
        found = {name: met.counter_value("PersistentCache" + name) for name in ("Hit", "GraphHit", "Miss")}
        print(*(f"{name}={count}" for name, count in found.items() if count))
    """


# --- same key, other value: flags ---

CHANGED_FLAGS = (
    RUN
    + """
    torch.ones(1).to("xla")  # XLA parses the flags
    os.environ["XLA_FLAGS"] += " --xla_cpu_enable_fast_math=true"
    for size in (5, 6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(size)
        print(*(warning.message for warning in caught))
    """
)


def test_programs_are_named_by_the_flags_that_xla_has_parsed(tmp_path: Path) -> None:
    """A process whose variable changes after start-up does not give its programs to those that start with the value."""
    folder = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    fast = f"{fast_compile_flags.FLAGS} --xla_cpu_enable_fast_math=true"
    first = run_script(CHANGED_FLAGS, XLA_FLAGS=fast_compile_flags.FLAGS, **folder).stdout.splitlines()
    assert run_script(RUN + "\n    run(5)", XLA_FLAGS=fast, **folder).stdout == "Miss=1\n"
    assert run_script(RUN + "\n    run(5)", XLA_FLAGS=fast_compile_flags.FLAGS, **folder).stdout == "Hit=1 GraphHit=1\n"
    late = "torch_xla: XLA_FLAGS was changed after XLA had read it and has no effect"
    assert first[0] == "Miss=1" and first[1].startswith(late) and first[2:] == ["Miss=2", ""]


def test_the_content_of_a_flags_file_counts(tmp_path: Path) -> None:
    file, folder = tmp_path / "flags", tmp_path / "programs"
    found = []
    for extra in ("", " --xla_cpu_enable_fast_math=true"):
        file.write_text(fast_compile_flags.FLAGS + extra)
        variables = {"XLA_FLAGS": str(file), "XLA_PERSISTENT_CACHE_PATH": str(folder)}
        found.append(run_script(RUN + "\n    run(5)", **variables).stdout)
    assert found == ["Miss=1\n", "Miss=1\n"]


# --- same key, other value: names of files ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, in use by this process for the test."""
    monkeypatch.setattr(persistent_cache, "_files", False)
    persistent_cache.initialize(tmp_path)
    return tmp_path


def run_scaled(factor: float) -> Counts:
    """What moves as a process that has compiled nothing yet runs a small program, whose result depends on its text."""
    program_cache.cache.clear()
    with counts() as moved:
        x = torch.ones(int(factor)).to("xla")
        assert (x + x).sum().item() == 2 * factor
    return moved


def _swap(first: Path, second: Path) -> None:
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])


@pytest.mark.parametrize("suffix", ["xla", "graph"])
def test_swapped_files_are_refused_and_replaced(folder: Path, suffix: str) -> None:
    for factor in (2, 3):
        run_scaled(factor)
    _swap(*folder.glob(f"*.{suffix}"))
    for factor in (2, 3):
        with pytest.warns(RuntimeWarning, match="checksum mismatch|is a copy of"):
            moved = run_scaled(factor)
        assert moved["PersistentCacheDeserializeFailure"] == 1
        assert run_scaled(factor).only(*CACHE) == {"PersistentCacheHit": 1, "PersistentCacheGraphHit": 1}


# --- same key, other value: sources ---

#: Imports a copy of the package, and changes it as the name says. ``graphs`` are those that were named on disk.
CHANGED_SOURCES = """
    import os, sys
    sys.path.insert(0, os.environ["COPY"])
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    from pathlib import Path

    engine, folder = Path(torch_xla.__file__).parent / "_engine", Path(os.environ["TO"])
    rules = engine / "lowering" / "rules" / "unary.py"

    def touch():
        rules.write_bytes(rules.read_bytes())

    def edit():
        rules.write_text(rules.read_text().replace('"sinh": lax.sinh', '"sinh": lax.asinh'))

    def upgrade():
        rules.rename(rules.with_suffix(".old"))

    def lock():
        (engine / "lowering" / "rules" / ".#unary.py").symlink_to("someone@machine.1234")

    def add():
        (engine / "gone.py").symlink_to("nowhere")

    def run(change, size):
        found = {}
        torch_xla.runtime.initialize_cache(folder / change.__name__)
        if change is not edit:  # which comes before the first graph is named
            torch.ones(size).to("xla").sinh().sum().item()
        change()
        value = torch.ones(size).to("xla").cos().sinh().sum().item()
        unknown = met.counter_value("PersistentCacheSourcesUnknown") or 0
        print(change.__name__, len(list((folder / change.__name__).glob("*.graph"))), unknown, flush=True)

    for number, change in enumerate((lock, add, touch, edit, upgrade)):
        if os.fork() == 0:
            run(change, number + 2)
            os._exit(0)
        os.wait()
        (rules.with_suffix(".old").rename(rules) if change is upgrade else None)
    """

RUN_COPY = """
    import os, sys
    sys.path.insert(0, os.environ["COPY"])
    import torch, torch_xla
    torch_xla.runtime.initialize_cache(os.path.join(os.environ["TO"], "edit"))
    value = torch.ones(5).to("xla").cos().sinh().sum().item()
    print(abs(value / 5 - torch.ones(1).cos().asinh().item()) < 1e-6)
    """


def test_programs_are_not_named_by_files_that_changed_after_their_import(tmp_path: Path) -> None:
    """A process that imported old rules gives no program to one that imports the new ones, and no file ends it."""
    copy = tmp_path / "copy"
    shutil.copytree(Path(torch_xla.__file__).parent, copy / "torch_xla")
    variables = {"COPY": str(copy), "TO": str(tmp_path)}
    found = run_script(CHANGED_SOURCES, imports="it imports a copy of the package", **variables).stdout.splitlines()
    assert run_script(RUN_COPY, imports="it imports a copy of the package", **variables).stdout == "True\n"
    assert found == ["lock 2 0", "add 2 0", "touch 1 1", "edit 0 1", "upgrade 0 2"]


# --- other owner, other umask ---

_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user: run it as root")

#: Of another user: (uid, gid) of no entry in /etc/passwd.
OTHER = 12345

#: Becomes another user who may read every file (for Python itself may be root's alone), and write to none of root's.
AS_OTHER = """
    import ctypes, os
    libc, head, bit = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0), 1 << 2
    libc.prctl(8, 1, 0, 0, 0)  # keeps capabilities: CAP_DAC_READ_SEARCH
    os.setgroups([]), os.setgid(12345), os.setuid(12345)
    assert libc.capset(head, (ctypes.c_uint32 * 6)(bit if {reads} else 0, bit if {reads} else 0, bit, 0, 0, 0)) == 0
    {reads} and libc.prctl(47, 2, 2, 0, 0)  # in programs that it starts, too
    """


def link_owned(cache: Path, uid: int, mode: int = 0o700) -> None:
    """Copies the builds of this cache folder, as a user's who has built them: that takes up to half a minute."""
    guard = device_guard_library.device_guard_extension()
    for extension in (build.recorder_extension(), library.kernel_extension(), guard):
        source = build.build_or_find(extension)
        target = cache / source.relative_to(settings.cache_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for path in [cache, *cache.rglob("*")]:
        path.chmod(mode)
        os.chown(path, uid, uid)


IMPORT = """
    import pathlib, warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch_xla
        from torch_xla._engine import recorder
        from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
        library = recorder.bindings().__file__
        files = persistent_cache._open_configured()
    print(library, files.folder if files else None)
    print(*(warning.message for warning in caught if "torch_xla" in str(warning.message)), sep="\\n")
    """


@pytest.fixture
def reachable() -> Iterator[Path]:
    """An empty folder that other users may come to, and leave files in, as in /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def run_as_other(code: str, folder: Path, reads: bool = True, **env: str) -> list[str]:
    """Runs the code as another user whose temporary folder this is; without ``reads`` he may not read root's files."""
    script = textwrap.dedent(AS_OTHER.format(reads=reads)) + textwrap.dedent(code)
    variables = {"TMPDIR": str(folder), "XDG_CACHE_HOME": "", **env}
    script = 'os_environ = __import__("os").environ; del os_environ["XLA_PERSISTENT_CACHE_PATH"]\n' + script
    done = run_script(script, imports="it imports torch_xla as another user" if reads else None, **variables)
    return done.stdout.splitlines()


@_AS_ROOT
def test_a_user_without_a_home(reachable: Path) -> None:
    """As in a container that is run with --user 12345: no entry in /etc/passwd, no HOME."""
    own = reachable / f"torch_xla-{OTHER}"
    link_owned(own, OTHER)
    first, *messages = run_as_other('    os.environ.pop("HOME")' + IMPORT, reachable, CXX="none")
    library_path, programs_path = map(Path, first.split())
    assert library_path.is_relative_to(own / "recorder") and programs_path == own / "programs" and messages == [""]
    assert own.stat().st_mode & 0o777 == programs_path.stat().st_mode & 0o777 == 0o700


@_AS_ROOT
def test_two_users_with_one_cache_folder(reachable: Path) -> None:
    """The second user falls back to a private folder, with a warning; the first user had a umask of 077."""
    shared, own = reachable / "shared", reachable / f"torch_xla-{OTHER}"
    link_owned(shared, OTHER + 1)
    link_owned(own, OTHER)
    (reachable / "home").mkdir()  # root's
    variables = {"TORCH_XLA_CACHE_DIR": str(shared), "HOME": str(reachable / "home")}
    first, *messages = run_as_other(IMPORT, reachable, CXX="none", **variables)
    assert [Path(path).is_relative_to(own) for path in first.split()] == [True, True]
    assert all(f"{shared} belongs to another user" in line for line in messages)
    contents = ["for the recorder:", "for the CPU kernels:", "for the device guard:", "persistent compilation cache"]
    if not entry_points(group="torch.backends", name="torch_xla"):  # this checkout is not installed: it has no autoload
        contents.remove("for the device guard:")
    assert len(messages) == len(contents) and all(map(str.__contains__, messages, contents))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    private_folder.make(folder / "recorder", folder)
    return folder


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_folders_are_made_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        private_folder.make(tmp_path / "a" / "b" / "c", tmp_path / "a")
        private_folder.make_readable(tmp_path / "d" / "e")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "b": 0o700, "c": 0o700, "d": 0o755 & ~umask, "e": 0o755 & ~umask}


def test_an_own_folder_that_others_may_write_to_is_closed_or_refused(cache: Path) -> None:
    (cache / "recorder").chmod(0o777)
    with pytest.raises(PermissionError, match=f"{cache / 'recorder'} is writable by other users"):
        private_folder.check(cache / "recorder", cache, close=False)
    private_folder.make(cache / "recorder", cache)
    assert (cache / "recorder").stat().st_mode & 0o777 == 0o755


#: Who owns the cache folder and its mode, who owns the folder below it and its mode; whether it is used.
OWNERS = [
    ("own", 0, 0o700, 0, 0o700, True),
    ("shared by the user", 0, 0o777, 0, 0o700, True),
    ("as /tmp", 0, 0o1777, 0, 0o700, True),
    ("planted in one as /tmp", 0, 0o1777, OTHER, 0o755, False),
    ("foreign", OTHER, 0o755, 0, 0o700, False),
    ("foreign, as /tmp", OTHER, 0o1777, 0, 0o700, False),
    ("foreign below", 0, 0o700, OTHER, 0o700, False),
]


@_AS_ROOT
@pytest.mark.parametrize(("top", "mode", "below", "mode_below", "is_used"), [case[1:] for case in OWNERS],
                         ids=[case[0] for case in OWNERS])  # fmt: skip
def test_folders_of_others_are_refused(
    cache: Path, top: int, mode: int, below: int, mode_below: int, is_used: bool
) -> None:
    cache.chmod(mode), (cache / "recorder").chmod(mode_below)
    os.chown(cache, top, top), os.chown(cache / "recorder", below, below)
    with nullcontext() if is_used else pytest.raises(PermissionError, match=r"belongs to another user \(uid 12345\)"):
        private_folder.make(cache / "recorder", cache)


@pytest.mark.parametrize("kind", ["writable", "foreign"])
def test_a_library_that_others_may_write_to_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is built again in its place; so are those of the CPU kernels, which are built by the same function."""
    if kind == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can give a file away: run it as root")
    (tmp_path / "csrc").mkdir()
    extension = build.Extension("standin", tmp_path / "csrc", tmp_path / "cache", is_module=False)
    compiler = build.find_compiler()
    assert compiler is not None
    planted = extension.build_dir() / build.compiler_fingerprint(compiler) / "standin.so"
    private_folder.make(planted.parent, extension.cache)
    planted.write_text("planted")
    os.chown(planted, OTHER, OTHER) if kind == "foreign" else planted.chmod(0o666)

    def compile_extension(job: build.BuildJob, compiler: list[str], lock: int) -> None:
        planted.unlink()
        job.library.write_text("built")

    monkeypatch.setattr(build, "compile_extension", compile_extension)
    assert build.build_or_find(extension) == planted and planted.read_text() == "built"
    assert (extension.build_dir() / "lock").stat().st_mode & 0o777 == 0o600


# --- leftovers of a run that was killed ---


@pytest.mark.parametrize("ending", ["1.2", "0f" * 16])  # of an earlier release, and of this one
@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_what_killed_processes_were_writing_is_removed(folder: Path, limit: int | None, ending: str) -> None:
    """After an hour: until then another process may be writing it."""
    old, new = folder / f"{'0' * 64}.{ending}", folder / f"{'1' * 64}.{ending}"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    storage.CacheFolder(folder, False, limit).write_graph_entry(folder / f"{'2' * 64}.graph", KNOWN)
    assert not old.exists() and new.exists()


KNOWN = storage.GraphEntry(Path(f"{'3' * 64}.xla"), {})


# --- everything that the package writes ---

_HERE = "compilation/test_cache_folders.py"

#: Modules that write files or make folders, and the tests of a folder that is not empty.
WRITERS = {
    "_engine/aot/target_compiler.py": "a new temporary folder",
    "_engine/aot/cache_export.py": _HERE + "::test_folders_are_made_private_whatever_the_umask",
    "_engine/base/atomic_file.py": "public/test_checkpoint_folders.py",
    "_engine/base/settings_check.py": "creates the user's cache folder, empty",
    "_engine/base/private_folder.py": _HERE + "::test_folders_are_made_private_whatever_the_umask",
    "_engine/device/pjrt_plugins.py": "a new temporary folder",
    "_engine/diagnostics/debug_analysis.py": _HERE + "::test_reports_of_a_second_run",
    "_engine/diagnostics/metrics_file.py": _HERE + "::test_reports_of_a_second_run",
    "_engine/compilation/persistent_cache/archive.py": "cli/test_cache_command.py::test_export_and_import",
    "_engine/compilation/persistent_cache/cache.py": _HERE + "::test_two_users_with_one_cache_folder",
    "_engine/execution/graph_dump.py": _HERE + "::test_reports_of_a_second_run",
    "_engine/compilation/persistent_cache/storage.py": _HERE + "::test_what_killed_processes_were_writing_is_removed",
    "_engine/torch_patches/serialization.py": "what the user gives to torch.save",
    "_engine/recorder/build.py": _HERE + "::test_a_library_that_others_may_write_to_is_not_loaded",
    "_engine/recorder/toolchain.py": "recorder/test_build.py::test_killed_build_does_not_block_the_next_one",
    "aot/command.py": "files that the command names",
    "cli/plan/command.py": "files that the command names",
    "cli/plan/planner.py": "a new temporary folder",
    "cli/plan/result_store.py": "cli/test_plan.py::test_the_default_folder_is_private",
    "cli/plan/worker.py": "a new temporary folder",
    "core/_ordinals.py": "a buffer in memory",
    "core/transfers.py": "public/test_checkpoint_folders.py",
    "debug/graph.py": "a file that the command names",
    "debug/graph_saver.py": "a file that the user names",
    "debug/model_comparator.py": _HERE + "::test_reports_of_a_second_run",
    "debug/step_report.py": "a file that the user names",
    "distributed/_spawn_context.py": "a new temporary folder",
    "distributed/fsdp/state_dict_utils.py": "public/test_checkpoint_folders.py",
    "experimental/distributed_checkpoint/_leftovers.py": "public/test_checkpoint_folders.py",
    "experimental/distributed_checkpoint/_shards.py": "memory",
    "experimental/distributed_checkpoint/_local_tier.py": "public/test_checkpoint_snapshots.py",
    "experimental/distributed_checkpoint/_remote_tier.py": "public/test_checkpoint_folders.py",
    "experimental/distributed_checkpoint/_snapshots.py": "public/test_checkpoint_snapshots.py",
    "stablehlo/bundle.py": "public/test_checkpoint_folders.py",
    "utils/serialization.py": "public/test_checkpoint_folders.py",
    "utils/utils.py": "a new temporary folder",
}

_CALLS = {
    "mkdir", "makedirs", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "write_text", "write_bytes",
    "touch", "symlink_to", "replacing", "make_readable", "savez",
}  # fmt: skip


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name == "make":
        return owner == "private_folder"
    if name == "save":
        return owner in ("torch", "np", "numpy")
    if name != "open":
        return name in _CALLS
    words = [part.value for part in (*call.args, *(k.value for k in call.keywords)) if isinstance(part, ast.Constant)]
    is_writing = any(isinstance(word, str) and re.fullmatch(r"[rbt]*[wax+][bt+]*", word) for word in words)
    return is_writing or "O_CREAT" in ast.unparse(call)


def test_every_writer_has_a_test_of_a_folder_that_is_not_empty() -> None:
    """A new module that writes files, or makes folders, is missing in the table until it has one."""
    package = Path(torch_xla.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and _writes(node)
    }
    assert found == set(WRITERS)
    tests = [entry.partition("::") for entry in WRITERS.values() if entry.startswith("test_")]
    for file, _, name in tests:
        if file != "public/test_checkpoint_folders.py":
            assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()


REPORTS = """
    import torch, torch_xla
    from torch_xla.debug import model_comparator

    x = torch.ones(4).to("xla") * 2
    model_comparator.save("x", x)
    torch_xla.sync()
    """


def test_reports_of_a_second_run(tmp_path: Path) -> None:
    """Files are appended to; those of a tensor are written again. A umask counts."""
    variables = {
        "XLA_METRICS_FILE": tmp_path / "metrics",
        "PT_XLA_DEBUG_FILE": tmp_path / "analysis",
        "XLA_SAVE_TENSORS_FILE": tmp_path / "graphs",
        "MODELCMP_SAVEDIR": tmp_path / "tensors",
    }
    environment = {name: str(path) for name, path in variables.items()} | {"PT_XLA_DEBUG": "1"}
    sizes = []
    for umask in ("077", "022"):
        run_script(f"    import os; os.umask(0o{umask})" + REPORTS, **environment)
        files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        assert all(path.stat().st_mode & 0o077 == 0 for path in files), "existing files keep their mode"
        sizes.append({path.name: path.stat().st_size for path in files})
    assert len(sizes[0]) == 4 and sizes[0].keys() == sizes[1].keys()
    assert all(sizes[1][name] > size for name, size in sizes[0].items() if "x" not in name.split("."))
