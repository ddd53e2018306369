"""How compilation grows with the length of a graph: long chains of one kind of operation.

    python -m benchmarks.chains [--lengths 500,2000] [--only additions]

CPU seconds of a separate process per kind and length, from the barrier to the result, the second time less: that of
running it. A kind whose growth is the lengths' own is linear. Nothing is cut (XLA_TRIM_GRAPH_SIZE), kept or loaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.report import setting, table

SIZE = 16


def _additions(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _mixed_step(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.5 + 0.25).sin()


def _products(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x.t())


def _means(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(1, keepdim=True)


def _layer_norms(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (SIZE,))


def _row_writes(x: torch.Tensor) -> torch.Tensor:
    x[0] = x[1] + 1
    return x


def _concatenations(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[1:], x[:1]])


def _lookups(x: torch.Tensor) -> torch.Tensor:
    return x[torch.zeros(SIZE, dtype=torch.int64, device=x.device)] + 1


#: What one link of a chain is; it records an operation or a few.
CHAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "additions": _additions,
    "numbers and sines": _mixed_step,
    "products": _products,
    "means subtracted": _means,
    "layer norms": _layer_norms,
    "writes of rows": _row_writes,
    "concatenations": _concatenations,
    "lookups": _lookups,
}


def compile_once(kind: str, length: int) -> float:
    """Seconds of CPU that compiling a chain takes, in this process."""
    import torch_xla

    def run() -> float:
        x = torch.ones(SIZE, SIZE).to("xla")
        torch_xla.sync(wait=True)
        for _ in range(length):
            x = CHAINS[kind](x)
        before = time.process_time()
        torch_xla.sync(wait=True)
        return time.process_time() - before

    return run() - run()


def _measure_in_process(kind: str, length: int) -> float:
    variables = {
        "TORCH_XLA_COMPILE_POLICY": "compile",
        "XLA_PERSISTENT_CACHE_PATH": "",
        "XLA_TRIM_GRAPH_SIZE": "1000000",
    }
    command = [sys.executable, "-m", "benchmarks.chains", "--here", kind, str(length)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="500,2000", help="how many links, two numbers or more")
    parser.add_argument("--only", default="", help="only the kinds whose name contains this")
    parser.add_argument("--here", nargs=2, metavar=("KIND", "LENGTH"), help="measure one in this process")
    options = parser.parse_args()
    if options.here:
        print(compile_once(options.here[0], int(options.here[1])))
        return
    lengths = [int(length) for length in options.lengths.split(",")]
    rows = []
    for kind in (kind for kind in CHAINS if options.only in kind):
        seconds = [_measure_in_process(kind, length) for length in lengths]
        rows.append([kind, *(f"{s:.2f}" for s in seconds), f"{seconds[-1] / seconds[0]:.1f}"])
    head = ["compilation, CPU s", *(f"{length} links" for length in lengths), "growth"]
    print(f"{setting()}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
