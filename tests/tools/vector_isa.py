"""Runs the numerical tests with the vector instructions and thread counts of other machines.

    python -m tests.tools.vector_isa [--only NAME ...] [pytest's options ...]

How a sum is split over a vector register, and whether a multiply-add rounds once or twice, differs between
CPUs, and between torch's libraries and XLA on one CPU. A test that depends on it compares undefined digits. Each
setting limits some of the libraries to the instructions of a smaller CPU; settings that this machine does not support
are skipped. Prints a table, and exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import fast_compile_flags

ROOT = Path(__file__).resolve().parents[2]
NUMERIC = [
    "lowering", "ops/test_ops_sample.py", "public/test_amp.py", "recorder/test_autograd.py",
    "capture/test_torch_compile.py", "recorder/test_composites.py", "integration/test_random_distributions.py",
    "recorder/test_dtypes.py", "kernels/test_flash_attention.py", "capture/test_func.py",
    "device/test_storage_dtypes.py", "integration/test_training_parity.py", "device/test_matmul_precision.py",
    "fuzz/test_random_programs.py", "recorder/test_rng.py", "integration/test_smoke.py", "recorder/test_views.py",
]  # fmt: skip


def libraries(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    """Return the variables that limit torch's own kernels, and those of oneDNN and MKL."""
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_CBWR": mkl}


_SSE = libraries("default", "SSE41", "COMPATIBLE")
_AVX2 = libraries("avx2", "AVX2", "AVX2")
_AVX512 = libraries("avx512", "AVX512_CORE", "AVX512")


@dataclass(frozen=True)
class Setting:
    """Variables of torch, the largest instruction set that XLA uses, and the CPU features that both need."""

    torch: dict[str, str]
    xla: str
    needs: set[str] = field(default_factory=set)
    threads: int | None = None

    def environment(self) -> dict[str, str]:
        flags = f"{fast_compile_flags.FLAGS} --xla_cpu_max_isa={self.xla}"
        threads = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)} if self.threads else {}
        # Idle threads sleep. By default they spin for milliseconds after each op; with more threads than cores, threads
        # with work would wait for idle ones.
        passive = {"OMP_WAIT_POLICY": "PASSIVE"}
        return {**os.environ, **self.torch, **threads, **passive, "XLA_FLAGS": flags}


#: Combinations of torch's and XLA's instruction sets, and thread counts. AVX is XLA's minimum: jaxlib 0.10.2
#: has no float16 conversion for a CPU without it, and cannot run a program that converts one.
SETTINGS = {
    "torch SSE, XLA AVX": Setting(_SSE, "AVX", {"avx"}, threads=1),
    "all AVX2": Setting(_AVX2, "AVX2", {"avx2"}, threads=2),
    "all AVX-512": Setting(_AVX512, "AVX512", {"avx512f", "avx512bw"}, threads=4),
    "torch SSE, XLA AVX-512": Setting(_SSE, "AVX512", {"avx512f", "avx512bw"}, threads=2),
    "torch SSE, XLA AVX2": Setting(_SSE, "AVX2", {"avx2"}),
    "torch AVX2, XLA AVX": Setting(_AVX2, "AVX", {"avx2"}, threads=4),
    "torch AVX-512, XLA AVX": Setting(_AVX512, "AVX", {"avx512f", "avx512bw"}, threads=1),
    "torch default, XLA AVX": Setting({}, "AVX", {"avx"}, threads=1),
}


def _cpu() -> set[str]:
    """Return the features of this machine's CPU, as the kernel names them."""
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def run(setting: Setting, options: list[str]) -> tuple[dict[str, int], list[str], float]:
    """Return the counts of outcomes, the names of failed tests, and seconds. Raises RuntimeError if no test ran."""
    paths = [] if any(not option.startswith("-") and "tests" in option for option in options) else _paths()
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE", *paths, *options],
        env=setting.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    last = done.stdout.rstrip().rpartition("\n")[2]
    ends = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    if not ends:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    bad = re.findall(r"^(?:FAILED|ERROR) .*$", done.stdout, re.MULTILINE)
    return ends, bad, time.monotonic() - start


def _paths() -> list[str]:
    return [str(ROOT / "tests" / name) for name in NUMERIC]


def main(arguments: list[str]) -> int:
    """Run the settings one after the other; return 1 if a test failed with one of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.vector_isa", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=SETTINGS, help="run this setting only (default: all)")
    parsed, options = parser.parse_known_args(arguments)
    able, failed = _cpu(), []
    print(f"| {'setting':27} | passed | failed | skipped | seconds |\n| --- | --- | --- | --- | --- |")
    for name in parsed.only or SETTINGS:
        if lacking := SETTINGS[name].needs - able:
            print(f"| {name:27} | this CPU has no {', '.join(sorted(lacking))} |", flush=True)
            continue
        ends, bad, seconds = run(SETTINGS[name], options)
        number = [ends.get("passed", 0), len(bad), ends.get("skipped", 0), round(seconds)]
        print(f"| {name:27} | {number[0]:6} | {number[1]:6} | {number[2]:7} | {number[3]:7} |", flush=True)
        print(*bad, sep="\n", end="\n" if bad else "", flush=True)
        failed += bad
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
