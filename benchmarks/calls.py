"""What a call of a compiled function costs the host at 200 parameters: torch.compile(backend="openxla") and jax.jit.

    python -m benchmarks.calls

CPU time of the thread that calls, in µs: the least of several rounds, in turns. "guards" is what torch.compile asks
before each call, with a backend that does nothing. A call of the backend openxla records one operation, and
torch_xla.sync() runs what was recorded; jax.jit runs at each call. The device's own work is next to nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import torch_xla
from benchmarks import report

PARAMETERS, ROUNDS, CALLS = 200, 15, 100


class Sum(torch.nn.Module):
    """A module of many small parameters, each of which it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(4)) for _ in range(PARAMETERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` and all parameters."""
        for term in self.terms:
            x = x + term
        return x


def _identity_backend(graph: Any, inputs: Any) -> Callable[..., Any]:
    """Backend of torch.compile whose functions return their last argument, the batch."""
    return lambda *args: (args[-1],)


def cases() -> dict[str, Callable[[], Any]]:
    """What is called, by name."""
    model, x = Sum().to("xla"), torch.ones(4, device="xla")
    torch_xla.sync()
    compiled = torch.compile(model, backend="openxla")
    guards = torch.compile(Sum().to("xla"), backend=_identity_backend)
    function, arrays, array = jax.jit(lambda x, terms: sum(terms, x)), [jnp.ones(4)] * PARAMETERS, jnp.ones(4)

    def step() -> torch.Tensor:
        y = compiled(x)
        torch_xla.sync()
        return y

    return {
        "jax.jit": lambda: function(array, arrays),
        "openxla": lambda: compiled(x),
        "openxla, and torch_xla.sync()": step,
        "guards of torch.compile alone": lambda: guards(x),
    }


def measure(rounds: int, calls: int) -> dict[str, float]:
    """µs of host time that a call takes, by name."""
    best: dict[str, float] = {}
    with torch.no_grad(), report.no_garbage_collection():
        timed = cases()
        for _ in range(rounds):
            for name, call in timed.items():
                call()  # what it was asked before may have been another's
                start = time.thread_time()
                for _ in range(calls):
                    call()
                spent = (time.thread_time() - start) / calls
                torch_xla.sync()
                best[name] = min(spent * 1e6, best.get(name, float("inf")))
    return best


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    found = measure(3 if options.quick else ROUNDS, CALLS)
    rows = [[name, f"{value:.0f}", f"{value / found['jax.jit']:.2f}"] for name, value in found.items()]
    print(report.setting() + "\n")
    print(report.table([f"a call at {PARAMETERS} parameters, host µs", "", "of jax.jit"], rows))


if __name__ == "__main__":
    main()
