"""Checks the wheel of scripts/build_wheel.py: from ``pip install`` to the first training step, without a compiler.

    python scripts/check_wheel.py [--wheel dist/torch_xla-....whl] PYTHON ...

Each PYTHON is an interpreter of an environment with torch and jax. The wheel is installed in a separate folder; the
step runs with an empty PATH, home and cache folder, so that nothing can be compiled or found. Prints the seconds of the
installation and of the step, and fails above ten (``--most``) or if a library was compiled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = """
import torch
import torch_xla
from torch_xla._engine import recorder
from torch_xla._engine.cpu_backend import library

model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(10816, 10))
model = model.to("xla")
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(32, 1, 28, 28, device="xla"), torch.zeros(32, dtype=torch.int64, device="xla")
loss = torch.nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
torch_xla.sync()
assert torch.isfinite(loss).item() and library.load_library() is not None
for path in (recorder.bindings().__file__, str(library._located)):
    assert "/builds/" in path, f"{path} is not of the wheel"
print(torch.__version__)
"""


def main() -> int:
    """Check the wheel with each interpreter; return 1 if one is too slow, or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="default: the newest in dist")
    parser.add_argument("--most", type=float, default=10, help="seconds from the start of pip to the end of the step")
    parser.add_argument("python", nargs="+", help="interpreters of environments with torch and jax")
    options = parser.parse_args()
    wheel = options.wheel or max((ROOT / "dist").glob("*.whl"), key=lambda file: file.stat().st_mtime)
    passed = [check(python, wheel, options.most) for python in options.python]
    return int(not all(passed))


def check(python: str, wheel: Path, most: float) -> bool:
    """Install the wheel, run a step and print the times; return whether it worked in time."""
    with tempfile.TemporaryDirectory() as folder:
        site, home = Path(folder, "site"), Path(folder, "home")
        (home / "bin").mkdir(parents=True)
        start = time.monotonic()
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
        subprocess.run([*install, str(wheel)], check=True)
        installed = time.monotonic()
        variables = {"PATH": str(home / "bin"), "HOME": str(home), "PYTHONPATH": str(site), "PJRT_DEVICE": "CPU"}
        done = subprocess.run([python, "-c", STEP], cwd=folder, env=variables, capture_output=True, text=True)
        total = time.monotonic() - start
    if done.returncode or "building the" in done.stderr:
        print(f"check_wheel: {python}: FAILED\n{done.stderr}")
        return False
    late = f", more than {most:g} s: FAILED" if total > most else ""
    times = f"pip {installed - start:.1f} s, first step {total - installed + start:.1f} s, together {total:.1f} s"
    print(f"check_wheel: torch {done.stdout.strip()}: {times}{late}")
    return not late


if __name__ == "__main__":
    sys.exit(main())
