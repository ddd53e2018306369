"""Device memory: use, provenance and peaks; the leak checker; memory of compilations returned to the system."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import run_script
from torch_xla._engine import recorder
from torch_xla._engine.cpu_backend import malloc_tuning
from torch_xla.debug import memory
from torch_xla.distributed.parallel_loader import MpDeviceLoader

KB = 1024


def _used() -> int:
    gc.collect()
    return xm.get_memory_info("xla")["bytes_used"]


def test_keys_of_all_releases() -> None:
    info = xm.get_memory_info(xm.xla_device())
    assert set(info) == {"bytes_used", "bytes_limit", "peak_bytes_used", "kb_free", "kb_total"}
    assert all(isinstance(value, int) for value in info.values())
    assert 0 <= info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]
    assert info["kb_total"] == info["bytes_limit"] // KB
    assert info["kb_free"] == (info["bytes_limit"] - info["bytes_used"]) // KB
    assert xm.get_memory_info() == xm.get_memory_info("xla:0")


def test_follows_buffers() -> None:
    before = _used()
    x = torch.ones(64, KB).to("xla")
    assert _used() - before == 256 * KB
    y = x * 3
    assert _used() - before == 256 * KB, "recorded ops use no memory"
    torch_xla.sync()
    assert _used() - before == 512 * KB
    half = y.half()
    torch_xla.sync()
    assert _used() - before == 640 * KB
    view = x[:32]
    torch_xla.sync()
    assert _used() - before == 640 * KB + (128 * KB if len(memory.buffers()) and _is_buffer(view) else 0)
    del x, y, half, view
    assert _used() - before == 0


def _is_buffer(tensor: torch.Tensor) -> bool:
    return recorder.bindings().nodes_of([tensor])[0].buffer is not None


def test_donated_buffers_count_once() -> None:
    before = _used()
    x = torch.ones(64, KB).to("xla")
    for _ in range(3):
        x.mul_(2)
        torch_xla.sync()
        assert _used() - before == 256 * KB
    peak = xm.get_memory_info("xla")["peak_bytes_used"]
    assert peak - before >= 256 * KB


def test_peak_of_each_step() -> None:
    torch_xla.sync()
    x = torch.ones(64, KB).to("xla")
    y = x * 3 + 1
    torch_xla.sync()
    del y
    torch_xla.sync()
    torch_xla.sync()
    high, fallen, low = memory.peak_per_step()[-3:]
    assert high >= low + 256 * KB and fallen >= low and low >= 256 * KB
    assert xm.get_memory_info("xla")["peak_bytes_used"] >= high
    del x


def test_buffers_and_their_provenance() -> None:
    x = torch.ones(512, KB).to("xla")  # 2 MB: the largest buffer
    y = x.double() + 1
    torch_xla.sync()
    largest, second = memory.buffers()[:2]
    assert (largest.shape, largest.dtype, largest.bytes, largest.kind) == ((512, KB), "float64", 4 << 20, "result")
    assert (second.shape, second.dtype, second.bytes, second.kind) == ((512, KB), "float32", 2 << 20, "upload")
    first = test_buffers_and_their_provenance.__code__.co_firstlineno
    assert second.line == f"{__file__}:{first + 1}" and largest.line == f"{__file__}:{first + 3}"
    text = memory.summary(rows=1)
    assert text.startswith("xla:0: ") and largest.line in text and "4.00MB" in text and " more lines" in text
    del x, y


def test_batches_have_the_line_of_their_loop() -> None:
    """Batches are uploaded by threads without user frames."""
    here = sys._getframe().f_lineno
    for batch in MpDeviceLoader([torch.ones(7, 3), torch.ones(7, 3)], torch.device("xla:0")):
        made = {b.line for b in memory.buffers() if b.shape == batch.shape and b.kind == "upload"}
        assert made == {f"{__file__}:{here + 1}"}


kept: list[torch.Tensor] = []


def test_no_leak() -> None:
    x = torch.ones(4, KB).to("xla")
    with memory.no_leak():
        for _ in range(3):
            x.mul_(2)
            (x + 1).sum()
            torch_xla.sync()

    def leak() -> None:
        with memory.no_leak():
            kept.extend(x * 3 for _ in range(2))

    with pytest.raises(memory.LeakError, match=r"xla:0 holds 32\.00KB more .*\n") as caught:
        leak()
    assert "2 × result" in str(caught.value)
    assert f"{__file__}:" in str(caught.value) and "float32[4, 1024]" in str(caught.value)
    kept.clear()
    with memory.no_leak(tolerance=32 * KB):
        kept.append(torch.ones(8, KB).to("xla"))
    kept.clear()
    with pytest.raises(ZeroDivisionError), memory.no_leak():
        kept.append(torch.ones(8, KB).to("xla") / (1 // 0))
    kept.clear()


COMPILED = """
import ctypes, pathlib, re
import torch, torch_xla

def resident():
    return int(re.search(r"VmRSS:\\s+([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024

x = torch.ones(4, 4, device="xla")
for _ in range(300):
    x = (x @ x).tanh()
torch_xla.sync()
before = resident()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident())
"""


FREED_BEFORE = COMPILED.replace(
    "x = torch.ones",
    """
from torch_xla._engine.compilation.persistent_cache import cache
load_or_compile, at_compilation = cache.load_or_compile, []
cache.load_or_compile = lambda *args: (at_compilation.append(resident()), load_or_compile(*args))[1]

blocks = [bytearray(50_000) for _ in range(2000)]  # small: part of the heap
last = bytearray(50_000)  # after the others: they cannot be returned from the end of the heap
del blocks
with_free_blocks = resident()
x = torch.ones""",
).replace("before - resident()", "with_free_blocks - at_compilation[-1]")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_compilation_starts_without_free_memory() -> None:
    """The compiler's threads have their own heaps: they cannot reuse the 100 MB that were freed in this one."""
    assert float(run_script(FREED_BEFORE, TORCH_XLA_COMPILE_POLICY="compile").stdout) > 50


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_memory_freed_by_compilation_returns_to_the_system() -> None:
    """It is 12 MB without trimming, for a program that is not optimized; up to 5.4 MB with it, by jax release."""
    assert float(run_script(COMPILED).stdout) < 8


#: Prints the thousands of page faults of most steps that allocate 24 MB, after the heap has grown.
_PAGES = """
import resource, statistics, torch, torch_xla
x = torch.randn(6 * 1024 * 1024).to("xla")
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    y = x * 2
    torch_xla.sync(wait=True)
found = []
for _ in range(40):
    before = pages()
    step()
    found.append(pages() - before)
print("pages", round(statistics.median(found[20:]) / 1000))
"""

#: Prints the thousands of page faults of most rounds in which a thread uses 90 MB, in blocks of 30 MB.
_PAGES_OF_A_THREAD = """
import ctypes, resource, statistics, threading
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
found, compiled = [], threading.Event()
def rounds():
    c.free(c.malloc(1 << 20))  # creates a separate heap for this thread; later threads may have to share one
    compiled.wait()
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [c.malloc(30 << 20) for _ in range(3)]
        for block in blocks:
            ctypes.memset(block, 1, 30 << 20)
        for block in blocks:
            c.free(block)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=rounds)
thread.start()
try:
    import torch, torch_xla
    torch.ones(4, device="xla").sum().item()
finally:
    compiled.set()
    thread.join()
print("pages", round(statistics.median(found[1:]) / 1000))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("script", "environment", "pages"),
    [
        (_PAGES, {}, 0),
        (_PAGES, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1048576"}, 6),
        (_PAGES_OF_A_THREAD, {}, 0),
        (_PAGES_OF_A_THREAD, {"MALLOC_TOP_PAD_": "0", "MALLOC_MMAP_THRESHOLD_": "33554432"}, 8),
    ],
    ids=["program", "tunables", "thread", "thread with MALLOC_TOP_PAD_"],
)
def test_memory_is_reused(script: str, environment: dict[str, str], pages: int) -> None:
    """The process keeps freed memory, unless the user's own settings of malloc return at least a block each round."""
    output = run_script(script, TORCH_XLA_COMPILE_POLICY="compile", **environment).stdout
    faults = int(output.split("pages")[1])
    assert faults >= pages if environment else faults == 0, output


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "33554432"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, True),
        ({"MALLOC_MMAP_MAX_": "1"}, True),
        ({"MALLOC_TOP_PAD_": "0"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=0"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_ARENA_MAX": "1"}, False),
    ],
    ids=str,
)
def test_variables_that_configure_malloc(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """malloc defines the effect of each variable; the previous test runs an interpreter with one of each kind."""
    for name in {*os.environ} - {*variables}:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert malloc_tuning._user_configured_malloc() is expected


#: Prints the resident MB of freed numpy arrays: of 17 of 24 MB, and of one of 200 MB.
_FREED = """
import gc, os, pathlib, re
import numpy as np, torch, torch_xla

def resident():
    return int(re.search(r"VmRSS:\\s+([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024

def left_of_arrays(megabytes, count):
    before = resident()
    arrays = [np.ones(megabytes << 17) for _ in range(count)]
    del arrays
    return resident() - before

x = torch.ones(int(os.environ["SIZE"]) << 18).to("xla")
y = x * 2 + 1
torch_xla.sync(wait=True)
del x, y
gc.collect()
print(round(left_of_arrays(24, 17)), round(left_of_arrays(200, 1)))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
@pytest.mark.parametrize("size", ["1", "240"], ids="program of {} MB".format)
@pytest.mark.parametrize("keeps", ["1", "0"])
def test_freed_user_arrays_do_not_stay_resident(keeps: str, size: str) -> None:
    """Whatever programs need: at most 64 MB of small ones stay, and no large ones."""
    done = run_script(_FREED, SIZE=size, TORCH_XLA_KEEP_HEAP=keeps, TORCH_XLA_COMPILE_POLICY="compile")
    small, large = (int(part) for part in done.stdout.split())
    assert small < (72 if keeps == "1" else 8) and large < 8
