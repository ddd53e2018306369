"""What many equal layers cost: their compilation with scan_layers, and their recording with assume_pure.

    python -m benchmarks.layers [--quick]

Compilation: of forward and backward of a decoder, each in a separate process: CPU time of that process the first
time, above that of the third. The optimizer is not in it: it updates single parameters, as many as there are, but with
StackedLayers. Recording: CPU time of the thread that records forward and backward
of 100 layers, without running them; the least of several rounds, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import no_garbage_collection, setting, table

HERE = Path(__file__).resolve().parent.parent
WAYS = {"apart": "one by one", "scan": "`scan_layers`", "stacked": "`StackedLayers`"}
FEW, MANY, RECORDED = 12, 48, 100
WIDTH, HEADS, LENGTH = 64, 4, 16


def compile_once(way: str, layers: int) -> float:
    """Seconds of CPU that compiling forward and backward takes."""
    import torch
    from torch import nn

    import torch_xla
    from benchmarks.models import Decoder
    from torch_xla.experimental.scan_layers import StackedLayers, scan_layers

    model: nn.Module = nn.ModuleList(Decoder(WIDTH, HEADS) for _ in range(layers)).to("xla")
    if way == "stacked":
        model = StackedLayers(model)
    x = torch.randn(2, LENGTH, WIDTH, device="xla")

    def forward(x: torch.Tensor) -> torch.Tensor:
        if way == "stacked":
            return model(x)
        if way == "scan":
            return scan_layers(model, x)
        for layer in model:
            x = layer(x)
        return x

    def step() -> float:
        torch_xla.sync(wait=True)
        before = time.process_time()
        model.zero_grad()
        forward(x).pow(2).mean().backward()
        torch_xla.sync(wait=True)
        return time.process_time() - before

    first, _, known = step(), step(), step()
    return first - known


def record(layers: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of the host for forward and backward of so many layers: as they are, and as PureModules."""
    import torch
    from torch import nn

    import torch_xla
    from benchmarks.models import Decoder
    from torch_xla.experimental.assume_pure import PureModule

    modules = nn.ModuleList(Decoder(WIDTH, HEADS) for _ in range(layers)).to("xla")
    pure = [PureModule(module) for module in modules]
    parameters = list(modules.parameters())
    x = torch.randn(2, LENGTH, WIDTH, device="xla")
    torch_xla.sync()

    def step(run: Callable[[], list[nn.Module]]) -> float:
        for parameter in parameters:
            parameter.grad = None
        before = time.thread_time()
        y = x
        for layer in run():
            y = layer(y)
        y.sum().backward()
        return (time.thread_time() - before) * 1e3

    ways: tuple[Callable[[], list[nn.Module]], ...] = (lambda: list(modules), lambda: pure)
    for run in ways:
        step(run)
    with no_garbage_collection():
        found = [[step(run) for run in ways] for _ in range(rounds)]
    return min(a for a, _ in found), min(b for _, b in found)


def _in_process(what: str, *args: object, **env: str) -> list[float]:
    """What ``what(*args)`` of this file gives in a separate process."""
    command = [sys.executable, "-m", "benchmarks.layers", what, *map(str, args)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, env=os.environ | env)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["compile", "record"])
    parser.add_argument("args", nargs="*")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.what == "compile":
        print(json.dumps([compile_once(options.args[0], int(options.args[1]))]))
    elif options.what == "record":
        print(json.dumps(record(*map(int, options.args))))
    else:
        print(tables(options.quick))


def tables(quick: bool) -> str:
    """The two tables."""
    few, many = (FEW // 4, MANY // 4) if quick else (FEW, MANY)
    seconds = {way: [_in_process("compile", way, n)[0] for n in (few, many)] for way in WAYS}
    rows = [
        [name, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}", f"{b / seconds['apart'][1]:.2f}"]
        for way, name in WAYS.items()
        for a, b in [seconds[way]]
    ]
    head = ["compilation of forward and backward, CPU s", f"{few} layers", f"{many} layers", "growth", "of one by one"]
    # Nothing is run, and nothing cut: recording alone is measured.
    plain, pure = _in_process("record", RECORDED, 3 if quick else 10, XLA_TRIM_GRAPH_SIZE=str(10**9))
    hosts = [["as they are", f"{plain:.1f}", "1.00"], ["`PureModule`", f"{pure:.1f}", f"{pure / plain:.2f}"]]
    host = table([f"recording forward and backward of {RECORDED} layers, host ms", "", "ratio"], hosts)
    return f"{setting()}\n\n{table(head, rows)}\n\n{host}"


if __name__ == "__main__":
    main()
