"""The persistent compilation cache: programs that another process compiled, and what must not come from it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from tests.support import fast_compile_flags
from tests.support.helpers import Counts, counts, link_builds, run_script
from torch_xla import backends
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache.storage import CacheEvictor, CacheFolder
from torch_xla._engine.device import matmul_precision

CACHE = (
    "PersistentCacheHit",
    "PersistentCacheGraphHit",
    "PersistentCacheMiss",
    "PersistentCacheDeserializeFailure",
    "PersistentCacheWriteFailure",
)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_cache, "_files", False)
    monkeypatch.setattr(matmul_precision, "_chosen", None)


UNTRACED = {"PersistentCacheHit": 1, "PersistentCacheGraphHit": 1}


def programs_in(folder: Path) -> list[Path]:
    """The programs there, without what is noted of graphs."""
    return sorted(folder.glob("*.xla"))


def run_sized(size: int) -> Counts:
    """The same with a separate program for each size."""
    program_cache.cache.clear()
    with counts() as moved:
        assert torch.ones(size, size).to("xla").mul(3.0).sum().item() == 3 * size * size
    return moved


def run(value: float = 1.0) -> Counts:
    """What moves as a process that has compiled nothing yet runs a small program."""
    program_cache.cache.clear()
    with counts() as moved:
        x = torch.full((5, 5), value).to("xla")
        assert (x @ x - 0.5).sum().item() == 125 * value * value - 12.5
    return moved


SCRIPT = """
    import jax, torch, torch_xla
    import torch_xla.debug.metrics as met

    before = dict(jax.config.values)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 8, device="xla")
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    print(loss.item().hex(), model[0].weight.sum().item().hex())
    assert jax.config.values == before and jax.config.jax_compilation_cache_dir is None
    samples = lambda name: (met.metric_data(name) or [0])[0]
    counters = [met.counter_value(f"PersistentCache{name}") or 0 for name in ("Hit", "GraphHit", "Miss")]
    print(samples("CompileTime"), samples("PersistentCacheLoad"), *counters)
    """


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "made" / "here")
    values, first = run_script(SCRIPT, XLA_PERSISTENT_CACHE_PATH=folder).stdout.splitlines()
    compiled, loaded, hits, untraced, misses = map(int, first.split())
    assert compiled == misses > 2 and loaded == hits == untraced == 0
    assert len(programs_in(Path(folder))) == len(list(Path(folder).glob("*.graph"))) == compiled
    again = run_script(SCRIPT, XLA_PERSISTENT_CACHE_PATH=folder, XLA_PERSISTENT_CACHE_READ_ONLY="1").stdout.splitlines()
    assert again == [values, f"0 {compiled} {compiled} {compiled} 0"], "nothing traced; the same values, to the bit"
    _, other = run_script(SCRIPT, XLA_PERSISTENT_CACHE_PATH=folder, XLA_USE_BF16="1").stdout.splitlines()
    assert int(other.split()[0]) > 0, "its programs are others"


OWN = """
    import os, warnings
    os.environ.pop("XLA_PERSISTENT_CACHE_PATH", None)  # as it is where no test is run
    warnings.simplefilter("always")
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    from torch_xla.debug import step_report

    print((torch.arange(6.0).to("xla") * 2).sum().item(), (met.metric_data("CompileTime") or [0])[0])
    lines = str(step_report.report()).splitlines()
    if "Persistent compilation cache" in lines:
        first = lines.index("Persistent compilation cache") + 1
        print(*" ".join(lines[first : first + 2]).split())  # a long path is in the second line
    else:
        print(None)
    """


def test_the_users_own_folder_is_used_where_none_is_named(tmp_path: Path) -> None:
    """By processes one after the other, within its limit, and only while no caller else may write to it."""
    link_builds(tmp_path)
    folder = tmp_path / "programs"

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        done = run_script(OWN, check=False, TORCH_XLA_CACHE_DIR=str(tmp_path), **environment)
        assert done.returncode == 0, done.stderr
        return done

    value, report = run().stdout.splitlines()
    assert value == "30.0 1" and folder.stat().st_mode & 0o777 == 0o700
    assert re.match(rf"0 loaded, 1 added; \d\S+ of 4.00GB in {folder}", report)
    value, report = run(TORCH_XLA_PERSISTENT_CACHE_MAX_GB="1").stdout.splitlines()
    assert value == "30.0 0" and re.match(rf"1 loaded, 0 added; \d\S+ of 1.00GB in {folder}", report)
    folder.chmod(0o770)
    done = run()
    assert done.stdout.splitlines() == ["30.0 1", "None"]
    assert f"the persistent compilation cache is disabled: {folder} is writable by other users" in done.stderr


LATE = """
    import os, warnings
    import torch, torch_xla
    import torch_xla.runtime as xr

    x = torch.ones(3).to("xla")  # the first use of a device
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = os.environ["TO"]
    if os.environ["NAMED"]:
        xr.initialize_cache(os.environ["TO"])

    def compile(shape):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert x.expand(*shape).cos().sum().item() > 0
        print(len(os.listdir(os.environ["TO"])) > 0, *sorted(str(w.message) for w in caught), sep="\\n")

    compile((2, 3))
    os.environ.update(TORCH_XLA_PERSISTENT_CACHE_MAX_GB="1", XLA_PERSISTENT_CACHE_READ_ONLY="neither")
    compile((4, 3))
    compile((5, 3))
    """


@pytest.mark.parametrize("named", ["", "by initialize_cache()"])
def test_a_folder_that_is_named_too_late_is_told(named: str, tmp_path: Path) -> None:
    """Once for each variable, by the first compilation after that; not where the folder is in use all the same."""
    first, to = tmp_path / "first", tmp_path / "to"
    to.mkdir()
    found = run_script(LATE, TO=str(to), NAMED=named, XLA_PERSISTENT_CACHE_PATH=str(first)).stdout.splitlines()
    late = "torch_xla: {} was set after the first use of a device and has no effect: the persistent compilation cache "
    late += f"uses {to if named else first}. Set it earlier, or call torch_xla.runtime.initialize_cache(path)."
    others = [late.format(name) for name in ("TORCH_XLA_PERSISTENT_CACHE_MAX_GB", "XLA_PERSISTENT_CACHE_READ_ONLY")]
    if named:
        assert found == ["True", "True", *others, "True"]
    else:
        assert found == ["False", late.format("XLA_PERSISTENT_CACHE_PATH"), "False", *others, "False"]


#: What a replica prints, or writes: the loss, and how many of its programs were compiled, and loaded or fetched.
TRAIN = """
    import os, torch, torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    import torch_xla.distributed.data_parallel as dp
    import torch_xla.distributed.xla_multiprocessing as xmp

    def train(model, rank):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.full((2, 3), rank + 1.0, device=model.weight.device)).square().mean()
            loss.backward()
            xm.optimizer_step(optimizer, barrier=True)
        return xm.all_reduce("sum", loss).item().hex()

    def model():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)

    def report():
        names = ("CompileTime", "PersistentCacheLoad", "JobProgramFetch")
        compiled, loaded, fetched = ((met.metric_data(name) or [0])[0] for name in names)
        return [compiled, loaded + fetched, met.counter_value("PersistentCacheDeserializeFailure") or 0]

    def work(rank):
        loss = train(model().to("xla"), rank)
        with open(f"{os.environ['WHERE']}/{rank}", "w") as file:
            print(loss, *report(), file=file)

    def loop(net, loader, device, context):
        return train(net, device.index)

    if os.environ["KIND"] == "processes":
        xmp.spawn(work, nprocs=2, start_method="fork")
    else:
        losses = dp.DataParallel(model, device_ids=["xla:0", "xla:1"])(loop, [])
        with open(f"{os.environ['WHERE']}/0", "w") as file:
            print(losses[0], *report(), file=file)
    """


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_programs_with_collectives(tmp_path: Path, kind: str) -> None:
    def run() -> list[list[str]]:
        environment = {"WHERE": str(tmp_path), "KIND": kind, "CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
        environment |= {
            "XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache"),
            "XLA_FLAGS": fast_compile_flags.FLAGS,
        }
        done = run_script(TRAIN, check=False, **environment)
        assert done.returncode == 0, done.stderr
        return [file.read_text().split() for file in sorted(tmp_path.glob("[01]"))]

    first, second = run(), run()
    assert len(first) == (2 if kind == "processes" else 1)
    programs = len(list((tmp_path / "cache").glob("*.xla")))
    assert programs >= 2 and sum(int(compiled) for _, compiled, *_ in first) == programs, "each program once"
    for (loss, compiled, found, _), again in zip(first, second, strict=True):
        used = str(int(compiled) + int(found))
        assert again == [loss, "0", used, "0"], "the same values, to the bit; nothing compiled"
    if kind == "processes":  # some files are lost: one process compiles what the other loads
        for file in sorted((tmp_path / "cache").iterdir())[::2]:
            file.unlink()
        assert [line[0] for line in run()] == [line[0] for line in first]


def test_hit_and_miss(tmp_path: Path) -> None:
    assert run().only(*CACHE) == {}, "no folder, no counters"
    persistent_cache.initialize(tmp_path)
    first = run()
    assert (first.only(*CACHE), first.compilations) == ({"PersistentCacheMiss": 1}, 1)
    second = run(2.0)
    assert (second.only(*CACHE), second.compilations) == (UNTRACED, 0)
    assert second["PersistentCacheLoad"] == 1
    backends.set_mat_mul_precision("high")
    assert run().only(*CACHE) == {"PersistentCacheMiss": 1}, "another program"


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    persistent_cache.initialize(tmp_path)
    run_sized(2)
    size = programs_in(tmp_path)[0].stat().st_size
    for n in (3, 4, 5):
        run_sized(n)
    files = sorted(programs_in(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    for age, file in enumerate(reversed(files)):
        os.utime(file, (time.time() - 60 * (age + 1),) * 2)
    run_sized(2)  # used just now
    # As those leave them that are killed, and that write; and a file that is not ours, in a folder that the user named.
    killed, writing, others = (tmp_path / name for name in (f"{'a' * 64}.1.1", f"{'b' * 64}.1.1", "weights.xla"))
    for part, age in ((killed, 7200), (writing, 60), (others, 10**7)):
        part.write_bytes(b"some")
        os.utime(part, (time.time() - age,) * 2)
    persistent_cache._files = CacheFolder(tmp_path, False, limit=int(4.2 * size))
    moved = run_sized(6)
    assert moved.only(*CACHE, "PersistentCacheEvicted") == {"PersistentCacheMiss": 1, "PersistentCacheEvicted": 2}
    assert not killed.exists() and writing.exists() and others.exists()
    assert sorted(file for file in files if not file.exists()) == sorted(files[1:3]), "the oldest but the one just used"
    assert run_sized(2)["PersistentCacheHit"] == run_sized(6)["PersistentCacheHit"] == 1


def test_many_may_make_room_at_once(tmp_path: Path) -> None:
    """Each removes what others list, add or remove just then."""
    evictors = [CacheEvictor(5000) for _ in range(4)]

    def work(number: int) -> None:
        for i in range(150):
            (tmp_path / f"{number:032x}{i:032x}.xla").write_bytes(bytes(1000))
            evictors[number].record_added(tmp_path, 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert 1 <= len(list(tmp_path.iterdir())) <= 5


def test_read_only(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the read-only folder .*/none does not exist"):
        persistent_cache.initialize(tmp_path / "none", readonly=True)
    persistent_cache.initialize(tmp_path, readonly=True)
    assert run().only(*CACHE) == {"PersistentCacheMiss": 1}
    assert list(tmp_path.iterdir()) == []
    persistent_cache.initialize(tmp_path)
    run()
    persistent_cache.initialize(tmp_path, readonly=True)
    assert run().only(*CACHE) == UNTRACED


@pytest.mark.parametrize("cut", [0, 10, 60, -1], ids=["empty", "in the header", "in the program", "at the end"])
def test_damaged_file_is_compiled_again(tmp_path: Path, cut: int) -> None:
    persistent_cache.initialize(tmp_path)
    run()
    (file,) = programs_in(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    with pytest.warns(
        RuntimeWarning, match=f"could not load a program from the .* compiling it again: {file} is damaged"
    ):
        moved = run()
    assert moved.only(*CACHE) == {"PersistentCacheMiss": 1, "PersistentCacheDeserializeFailure": 1}
    assert run().only(*CACHE) == UNTRACED, "repaired"


GARBAGE = {
    "empty": b"", "cut": b'{"program": "', "no text": b"\xff\xfe", "a number": b"7", "a list": b"[]",
    "no calls": b'{"graph": "%g", "program": "%s"}',
    "calls of no number": b'{"graph": "%g", "program": "%s", "calls": {"mm": "x"}}',
    "calls in a list": b'{"graph": "%g", "program": "%s", "calls": [1]}',
    "a name of another kind": b'{"graph": "%g", "program": 1, "calls": {}}',
    "another folder": b'{"graph": "%g", "program": "../%s", "calls": {}}',
    "a lost program": b'{"graph": "%g", "program": "' + b"0" * 64 + b'.xla", "calls": {}}',
}  # fmt: skip


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_noted_of_a_graph_may_be_damaged(tmp_path: Path, content: bytes) -> None:
    """Then the program is found by its StableHLO, and it is noted again."""
    persistent_cache.initialize(tmp_path)
    run()
    (note,), (program,) = tmp_path.glob("*.graph"), programs_in(tmp_path)
    note.write_bytes(content.replace(b"%s", program.name.encode()).replace(b"%g", note.name.encode()))
    assert run().only(*CACHE) == {"PersistentCacheHit": 1}
    assert run().only(*CACHE) == UNTRACED, "noted again"


def test_handlers_that_a_program_calls_are_known_without_tracing(tmp_path: Path) -> None:
    persistent_cache.initialize(tmp_path)

    def convolve() -> Counts:
        program_cache.cache.clear()
        with counts() as moved:
            x, weight = torch.ones(8, 16, 32, 32).to("xla"), torch.ones(32, 16, 3, 3).to("xla")
            assert torch.conv2d(x, weight)[0, 0, 0, 0].item() == 144
        return moved

    first, second = convolve(), convolve()
    assert second.only(*CACHE) == UNTRACED
    assert first["CpuKernelCalls"] == second["CpuKernelCalls"] == 1


def test_program_runs_where_the_folder_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    persistent_cache.initialize(folder)
    folder.rmdir()
    with pytest.warns(
        RuntimeWarning, match=f"could not write a program to the persistent compilation cache in {folder}"
    ):
        moved = run()
    assert moved.only(*CACHE) == {"PersistentCacheMiss": 1, "PersistentCacheWriteFailure": 1}


def _with_callback() -> str:
    def call(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda v: v + 1, jax.ShapeDtypeStruct((2,), jnp.float32), x)

    return jax.jit(call).lower(jnp.ones(2)).as_text()


def _with_transfer(is_host_transfer: bool) -> ir.Module:
    """Build a program that sends a value: to the host, as callbacks on TPUs do, or to another device."""
    with ir.Context() as context, ir.Location.unknown():
        stablehlo.register_dialect(context)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            channel = stablehlo.ChannelHandle.get(1, 2 if is_host_transfer else 1)
            stablehlo.SendOp([], stablehlo.create_token(), channel, is_host_transfer=is_host_transfer)
        return module


# The text of a program, and whether it may be kept.
_PROGRAMS: dict[str, tuple[Callable[[], str], bool]] = {
    "no call": (lambda: jax.jit(jnp.sin).lower(jnp.ones(2)).as_text(), True),
    "callback on the CPU": (_with_callback, False),
    "callback with a quoted name": (lambda: _with_callback().replace("@xla_ffi_python_cpu_callback", '@"a.callback"'),
                                    False),
    "callback on a TPU": (lambda: str(_with_transfer(True)), False),
    "callback on a TPU, generic form": (lambda: _with_transfer(True).operation.get_asm(print_generic_op_form=True),
                                        False),
    "transfer between devices": (lambda: str(_with_transfer(False)), True),
    # jax writes it only for a mesh of several devices, with the address of the user's functions.
    "custom partitioning": (lambda: 'stablehlo.custom_call @CustomSPMDPartitioning(%0) {backend_config = "140"}',
                            False),
}  # fmt: skip


@pytest.mark.parametrize("kind", _PROGRAMS)
def test_programs_that_mean_something_in_one_process_only_are_not_kept(kind: str, tmp_path: Path) -> None:
    text, is_kept = _PROGRAMS[kind]
    assert (CacheFolder(tmp_path, False).executable_path(text(), [jax.devices()[0]]) is not None) == is_kept
