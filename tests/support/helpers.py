"""What several test files need: counter deltas, snippets in processes of their own, and comparison with the CPU."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import torch

import torch_xla
from tests.support import scripts
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import graph_function, program_cache
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.graph import graph_spec, program_info

ROOT = scripts.ROOT

#: Reading a value is the one thing that may carry an aten:: counter in a program that runs on the device as a whole.
READING = "aten::_local_scalar_dense"


class Counts(dict[str, int]):
    """By how much each counter, and the number of samples of each metric, has grown; 0 for what has not."""

    def __missing__(self, name: str) -> int:
        return 0

    @property
    def compilations(self) -> int:
        return self["CompileTime"]

    @property
    def executions(self) -> int:
        return self["ExecuteTime"]

    @property
    def fallbacks(self) -> set[str]:
        """The ops that ran on the CPU."""
        return {name for name in self if metrics.is_fallback(name)} - {READING}

    def only(self, *names: str) -> dict[str, int]:
        return {name: self[name] for name in names if self[name]}


def _now() -> dict[str, int]:
    return metrics.counters() | {name: metric.data()[0] for name, metric in metrics.metrics().items()}


@contextmanager
def counts() -> Iterator[Counts]:
    """Filled in when the block ends: what moved in it."""
    before, moved = _now(), Counts()
    yield moved
    after = _now()
    moved.update({name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)})


def link_builds(cache: Path) -> None:
    """Leads another cache folder to what has been compiled in this one: compiling takes up to half a minute."""
    cache.mkdir(parents=True, exist_ok=True)
    for builds in ("recorder", "CPU_kernels"):
        (cache / builds).symlink_to(settings.cache_dir / builds)


def run_script(code: str, check: bool = True, fresh: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a snippet in a process of its own; with ``check`` it must end with 0 and leave nothing on stderr.

    The process is a fork of one that has imported torch_xla, or torch and jax where variables are set that torch_xla
    reads while it is imported (see fork_server.py). ``fresh`` says why a snippet needs an interpreter that has imported
    nothing. A fork ends without freeing what it has imported: a snippet whose end is tested calls ``gc.unfreeze()``.
    """
    done = scripts.run(textwrap.dedent(code), fresh is not None, env)
    if check:
        assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        # The recorder may have been built just now, which says so.
        lines = [line for line in done.stderr.splitlines() if not re.fullmatch(r"torch_xla: .*\.\.\..*", line)]
        assert not lines, "\n".join(lines)
    return done


#: What programs were compiled from, which they do not keep: by the outline that they do keep.
_specs: dict[int, tuple[program_info.GraphOutline, graph_spec.GraphSpec]] = {}
_outline = program_info.graph_outline


def _noted(spec: graph_spec.GraphSpec) -> program_info.GraphOutline:
    found = _outline(spec)
    _specs[id(found)] = found, spec
    return found


program_info.graph_outline = _noted


def stablehlo() -> list[str]:
    """The programs in the cache, oldest first, as what XLA is given: before it widens what a CPU does not have."""
    texts = []
    with jax.enable_x64(True):
        for found in program_cache.cache.values():
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jax.tree.leaves(found.compiled.args_info)]
            texts.append(jax.jit(graph_function.graph_function(_specs[id(found.outline)][1])).lower(*shapes).as_text())
    return texts


def products(text: str) -> list[tuple[str, str]]:
    """(signature, precision) of every matrix product and convolution of a program in StableHLO."""
    lines = re.findall(r"stablehlo\.(?:dot|dot_general|convolution)\b.*", text)
    precision = re.compile(r"(?:precision = \[|#stablehlo<precision )(\w+)")
    return [(line.rpartition(" : ")[2], precision.findall(line)[0]) for line in lines]


def to(device: str, value: Any) -> Any:
    """Copies of all tensors in nested tuples, lists and dicts on the device; leaves keep requires_grad."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return type(value)(to(device, item) for item in value)
    if isinstance(value, dict):
        return {name: to(device, item) for name, item in value.items()}
    return value


def same(function: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> Any:
    """Asserts that the function gives on copies of ``args`` on xla what it gives on the CPU; returns the xla result."""
    expected, got = function(*to("cpu", args)), function(*to("xla", args))
    assert_same(got, expected, rtol, atol)
    return got


def assert_same(got: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Equal structure, dtypes, shapes and values (NaN equals NaN); every tensor of ``got`` on xla."""
    for tensor in _tensors(got):
        assert tensor.device.type == "xla"
    torch_xla.sync()
    torch.testing.assert_close(to("cpu", got), expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
