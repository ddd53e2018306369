"""What a step reads on the host while it is recorded: scalars on the CPU, and random number generators.

A scalar on the CPU, such as the step count of Adam, is read as a traced number; any other use of it is noted.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine.base import user_frames
from torch_xla._engine.replay.traced_number import NumberTrace


@dataclass
class HostScalar:
    """A scalar on the CPU that the step reads or counts up, such as the step count of Adam."""

    tensor: torch.Tensor
    name: str
    before: float
    version: int


_COUNTABLE = (torch.float32, torch.float64, torch.int64)


def is_countable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor on the CPU may be a HostScalar."""
    return tensor.numel() == 1 and tensor.dim() == 0 and tensor.dtype in _COUNTABLE and not tensor.requires_grad


_SCALAR_USES = frozenset({"add_", "__iadd__", "_foreach_add_", "__get__", "numel", "dim", "is_floating_point", "size"})


class ScalarReads(TorchFunctionMode):
    """Makes reads of host scalars traced numbers; notes any other use of them."""

    def __init__(self, scalars: dict[int, HostScalar], trace: NumberTrace) -> None:
        super().__init__()
        self._scalars, self._trace = scalars, trace
        self.other_uses: dict[str, str] = {}  # name of the scalar -> function and line

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        for argument in args:
            for value in argument if type(argument) is list else (argument,):
                scalar = self._scalars.get(id(value))
                if scalar is None:
                    continue
                if name == "item" and type(found) in (float, int):
                    return self._read(scalar, float(found))
                if name not in _SCALAR_USES:
                    self.other_uses[scalar.name] = f"{name}() at {user_frames.user_line()}"
        return found

    def _read(self, scalar: HostScalar, value: float) -> float:
        added = value - scalar.before
        source = ("source", ("scalar", id(scalar.tensor)))
        return self._trace.make(value, ("+", source, ("constant", added)) if added else source)


def is_host_generator(value: Any) -> bool:
    """Whether a value is a random number generator on the host, of Python, numpy or torch."""
    if isinstance(value, torch.Generator):
        return value.device.type == "cpu"
    return isinstance(value, random.Random | np.random.Generator | np.random.RandomState)


def _read_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.get_state(legacy=False)


def host_random_states(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of these generators, and of those of Python, numpy and torch, by the name for messages."""
    found: dict[str, Any] = {"random": random.getstate(), "torch on the CPU": torch.get_rng_state()}
    if "numpy.random" in sys.modules:
        found["numpy"] = np.random.get_state(legacy=False)  # noqa: NPY002
    return found | {f"the generator {name}": _read_state(generator) for name, generator in generators.items()}


def equal_states(a: Any, b: Any) -> bool:
    """Return whether two states of one generator are equal."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(equal_states(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
