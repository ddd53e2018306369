"""What the autoloaded device adds to ``import torch``: processes with and without the entry point, in turns.

    python -m benchmarks.autoload [--runs 9]

Prints the medians, and the median of the differences of neighboring runs, in ms of CPU time and of wall time; and the
time of the entry point itself, which varies less on a busy machine. Each process only imports torch; bytecode is cached
in a temporary folder, as after an installation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import torch
print((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)
"""
ENTRY = """
import time
import torch
wall, cpu = time.perf_counter(), time.process_time()
import torch_xla_autoload
torch_xla_autoload.register()
print((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)
"""


def measure(environment: dict[str, str], autoload: bool, code: str = CODE) -> list[float]:
    """Return the CPU and wall time that a process prints, in ms."""
    variables = environment | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run([sys.executable, "-c", code], env=variables, check=True, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return [float(number) for number in done.stdout.split()]


def install_entry_point(folder: Path) -> None:
    """Write a distribution with the entry point, as an installation of torch_xla does."""
    info = folder / "torch_xla_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_xla_entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_xla_entry = torch_xla_autoload:register\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        install_entry_point(Path(folder))
        environment = dict(os.environ) | {
            "PYTHONPATH": f"{ROOT}:{folder}",
            "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        from torch_xla._engine.recorder import device_guard_library  # the library that the import loads

        print("device guard:", device_guard_library.build_library())
        measure(environment, True)
        entries = [measure(environment, False, ENTRY) for _ in range(runs)]
        pairs = [(measure(environment, False), measure(environment, True)) for _ in range(runs)]
    for number, name in enumerate(("CPU", "wall")):
        off, on = [before[number] for before, _ in pairs], [after[number] for _, after in pairs]
        added = statistics.median(after - before for before, after in zip(off, on, strict=True))
        print(
            f"{name:4} time: without {statistics.median(off):7.1f} ms, with {statistics.median(on):7.1f} ms, "
            f"median difference {added:5.1f} ms; entry point {statistics.median(e[number] for e in entries):4.1f} ms"
        )


if __name__ == "__main__":
    main()
