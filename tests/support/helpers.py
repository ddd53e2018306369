"""Helpers of several test files: counter deltas, scripts in separate processes, and comparison with the CPU."""

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

#: Counter of value reads: the only aten:: counter that may move in a program without CPU fallbacks.
READING = "aten::_local_scalar_dense"


class Counts(dict[str, int]):
    """Increase of each counter, and of the number of samples of each metric; 0 if unchanged."""

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
    """Count in a block; the result is filled when the block ends."""
    before, moved = _now(), Counts()
    yield moved
    after = _now()
    moved.update({name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)})


def link_builds(cache: Path) -> None:
    """Link the builds of this cache folder into another one: compiling takes up to half a minute."""
    cache.mkdir(parents=True, exist_ok=True)
    for builds in ("recorder", "CPU_kernels", "device_guard"):
        (cache / builds).symlink_to(settings.cache_dir / builds)


def run_script(
    code: str, check: bool = True, fresh: str | None = None, imports: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process; with ``check`` it must exit with 0 and print nothing on stderr.

    The process is a fork of one that has imported torch_xla, or torch and jax if variables are set that torch_xla
    reads while it is imported (see fork_server.py). ``imports`` is the reason why a script needs a process that has
    imported torch and jax, but not torch_xla; ``fresh`` why it needs an interpreter that has imported nothing: it costs
    the CPU time of ten forks. A fork ends without freeing imported objects: a script that tests shutdown calls
    ``gc.unfreeze()``.
    """
    done = scripts.run(textwrap.dedent(code), fresh is not None, env, libraries=imports is not None)
    if check:
        assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        # The recorder may have been built in this process, which prints a line.
        lines = [line for line in done.stderr.splitlines() if not re.fullmatch(r"torch_xla: .*\.\.\..*", line)]
        assert not lines, "\n".join(lines)
    return done


#: StableHLO of compiled programs, by the outline that programs store.
_specs: dict[int, tuple[program_info.GraphOutline, graph_spec.GraphSpec]] = {}
_outline = program_info.graph_outline


def _noted(spec: graph_spec.GraphSpec) -> program_info.GraphOutline:
    found = _outline(spec)
    _specs[id(found)] = found, spec
    return found


program_info.graph_outline = _noted


def stablehlo() -> list[str]:
    """Return the programs in the cache, oldest first, as passed to XLA, before it widens dtypes for the CPU."""
    texts = []
    with jax.enable_x64(True):
        for found in program_cache.cache.values():
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jax.tree.leaves(found.compiled.args_info)]
            texts.append(jax.jit(graph_function.graph_function(_specs[id(found.outline)][1])).lower(*shapes).as_text())
    return texts


def products(text: str) -> list[tuple[str, str]]:
    """Return (signature, precision) of every matrix multiplication and convolution of a StableHLO program."""
    lines = re.findall(r"stablehlo\.(?:dot|dot_general|convolution)\b.*", text)
    precision = re.compile(r"(?:precision = \[|#stablehlo<precision )(\w+)")
    return [(line.rpartition(" : ")[2], precision.findall(line)[0]) for line in lines]


def to(device: str, value: Any) -> Any:
    """Copy all tensors in nested tuples, lists and dicts to the device; leaves keep requires_grad."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return type(value)(to(device, item) for item in value)
    if isinstance(value, dict):
        return {name: to(device, item) for name, item in value.items()}
    return value


def same(function: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> Any:
    """Assert that the function returns the same on xla and on the CPU for copies of ``args``; return the xla result."""
    expected, got = function(*to("cpu", args)), function(*to("xla", args))
    assert_same(got, expected, rtol, atol)
    return got


def assert_same(got: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Assert equal structure, dtypes, shapes and values (NaN equals NaN); all tensors of ``got`` are on xla."""
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
