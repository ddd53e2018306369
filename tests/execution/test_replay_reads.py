"""Numbers that C code reads in a captured step: those that are noticed, those that are inputs, and the others.

In each step the number is also used as an operand, so that it may change between replays.
"""

from __future__ import annotations

import array
import cmath
import decimal
import io
import json
import pickle
import statistics
import struct
import sys
import types
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met

FORMAT = struct.Struct("d")


def unpack(packed: Any) -> float:
    """The number of eight bytes."""
    return float(struct.unpack("d", packed)[0])


def pack_into_buffer(n: float) -> float:
    """A number, packed into a buffer and unpacked."""
    buffer = bytearray(8)
    struct.pack_into("d", buffer, 0, n)
    return unpack(buffer)


def set_item(values: Any, n: float) -> float:
    """A number, written to an array or a tensor and read."""
    values[0] = n
    return float(values[0])


def dump_json(n: float) -> int:
    """How long the JSON text of a number is."""
    file = io.StringIO()
    json.dump({"lr": [n]}, file)
    return len(file.getvalue())


#: name -> a number of a number, equal for 2.5, 3.5, ... 7.5.
NOTICED: dict[str, Callable[[float], float]] = {
    "np.float64": lambda n: float(np.float64(n) // 8),
    "np.float32": lambda n: float(np.float32(n) // 8),
    "np.int64": lambda n: float(np.int64(n) // 8),
    "np.array": lambda n: float(np.array(n) // 8),
    "np.fromiter": lambda n: float(np.fromiter([n], float)[0] // 8),
    "ndarray.searchsorted": lambda n: float(np.arange(8.0, 24.0, 8.0).searchsorted(n)),
    "np.format_float_positional": lambda n: len(np.format_float_positional(n)),
    "an item of a numpy array": lambda n: set_item(np.zeros(1), n) // 8,
    "struct.pack": lambda n: unpack(struct.pack("d", n)) // 8,
    "struct.pack_into": lambda n: pack_into_buffer(n) // 8,
    "Struct.pack": lambda n: unpack(FORMAT.pack(n)) // 8,
    "Struct.pack of a new Struct": lambda n: unpack(struct.Struct("d").pack(n)) // 8,
    "array.array": lambda n: array.array("d", [n])[0] // 8,
    "json.dumps": lambda n: len(json.dumps(n)),
    "json.dumps of a container": lambda n: len(json.dumps({"lr": (n, 1)}, indent=1)),
    "json.dump": dump_json,
    "pickle.dumps": lambda n: float(pickle.loads(pickle.dumps(n)) // 8),
    "math.fsum of an iterator": lambda n: sys.modules["math"].fsum(v for v in [n]) // 8,
    "statistics.fmean": lambda n: statistics.fmean([n]) // 8,
    "statistics.mean": lambda n: statistics.mean([n]) // 8,
    "Decimal": lambda n: float(Decimal(n) // 8),
    "decimal.Decimal": lambda n: float(decimal.Decimal(n) // 8),
    "Decimal.from_float": lambda n: float(decimal.Decimal.from_float(n) // 8),
    "complex": lambda n: complex(n).real // 8,
    "cmath.sqrt": lambda n: cmath.sqrt(n * n).real // 8,
    "round": lambda n: round(n / 80, 1) // 0.1,
    "hash": lambda n: hash(n + 0.5) // 8,
    "hex": lambda n: len(n.hex()) + int(n.hex()[-1]) // 3,
    "format": lambda n: len(f"{n:.2f}"),
    "str.format": lambda n: len("{:.2f}".format(n)),  # noqa: UP032
    "%s": lambda n: len("%s" % n),  # noqa: UP031
    "torch.tensor": lambda n: torch.tensor(n).item() // 8,
    "torch.tensor of integers": lambda n: torch.tensor([n / 8], dtype=torch.int32).item(),
    "torch.full": lambda n: torch.full((1,), n).item() // 8,
    "torch.arange": lambda n: torch.arange(n / 8).numel(),
    "a tensor on the CPU": lambda n: (torch.zeros(1) + n).item() // 8,
    "an item of a tensor on the CPU": lambda n: set_item(torch.zeros(1), n) // 8,
}


def train_with(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A captured step that also uses the number as an operand."""
    return torch_xla.compile(lambda x, n: x * compute(n) + x * n, replay=True)


@pytest.mark.parametrize("name", NOTICED)
def test_a_number_that_c_code_reads_is_noticed(name: str) -> None:
    """The step is recorded in each call, with the right values, and the warning names the line."""
    compute = NOTICED[name]
    met.clear_counters()
    step, one = train_with(compute), torch.ones(2, device="xla")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(2, 13):
            assert step(one, i + 0.5).tolist() == [compute(i + 0.5) + i + 0.5] * 2, i
    assert (met.counter_value("ReplayedSteps"), met.counter_value("ReplayRejections")) == (None, 1)
    [message] = [str(w.message) for w in caught if "cannot be replayed" in str(w.message)]
    text = " ".join(message.split())
    assert "it converts a number that changes" in text
    assert "convert it before the call, and pass the result as an argument" in text
    assert "test_replay_reads.py" in text


INPUTS: dict[str, Callable[[Any, float], Any]] = {
    "torch.tensor": lambda x, n: torch.tensor(n, device="xla"),
    "torch.tensor of an integer": lambda x, n: torch.tensor(n / 8, dtype=torch.int32, device="xla"),
    "torch.tensor of bfloat16": lambda x, n: torch.tensor(256 + n / 8, dtype=torch.bfloat16, device="xla"),
    "torch.as_tensor": lambda x, n: torch.as_tensor(n / 8, device=torch.device("xla")).floor(),
    "Tensor.new_tensor": lambda x, n: x.new_tensor(n / 8, dtype=torch.int64),
    "torch.full": lambda x, n: torch.full((2,), n / 8, dtype=torch.int32, device="xla"),
    "Tensor.new_full": lambda x, n: x.new_full((2,), n / 8, dtype=torch.int32),
    "fill_": lambda x, n: torch.zeros(2, dtype=torch.int32, device="xla").fill_(n / 8),
    "an item": lambda x, n: set_device_item(x, n),
    "clamp": lambda x, n: (x * 8).clamp(max=n),
    "a comparison": lambda x, n: x * 8 > n,
}


def set_device_item(x: torch.Tensor, n: float) -> torch.Tensor:
    """Integers, of which a number replaces the first."""
    found = x.int()
    found[0] = n / 8
    return found


@pytest.mark.parametrize("name", INPUTS)
def test_a_number_in_a_device_tensor_is_an_input(name: str) -> None:
    """Also if the two recordings give the same tensor."""
    compute = INPUTS[name]
    met.clear_counters()
    step = torch_xla.compile(lambda x, n: x * compute(x, n) + x * n, replay=True)
    one = torch.ones(2, device="xla")
    for i in range(2, 13):
        n = i + 0.5
        expected = one * compute(one, n) + one * n
        assert torch.equal(step(one, n).cpu(), expected.cpu()), i
    assert met.counter_value("ReplayedSteps") == 9


#: name -> (what a recording does not notice, what to write instead); the table of docs/how_to/replay_a_step.md.
UNNOTICED: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "%f": (lambda n: len("%.2f" % n), lambda n: len(f"{n:.2f}")),  # noqa: UP031
    "%f of bytes": (lambda n: len(b"%.2f" % n), lambda n: len(f"{n:.2f}".encode())),
    "a method of float": (lambda n: float.__floor__(n / 8), lambda n: (n / 8).__floor__()),
    "array.append": (lambda n: append(array.array("d"), n), lambda n: append(array.array("d"), float(n))),
    "memoryview": (lambda n: view_item(n), lambda n: view_item(float(n))),
    "torch.Tensor": (lambda n: torch.Tensor([n]).item() // 8, lambda n: torch.tensor([n]).item() // 8),
}


def append(values: Any, n: float) -> float:
    """A number, appended to an array and read."""
    values.append(n)
    return float(values[0] // 8)


def view_item(n: float) -> float:
    """A number, written to a memoryview and read."""
    return set_item(memoryview(bytearray(8)).cast("d"), n) // 8


@pytest.mark.parametrize("name", UNNOTICED)
@pytest.mark.filterwarnings("ignore:torch_xla. torch_xla.compile")
def test_reads_that_are_not_noticed_have_a_noticed_form(name: str) -> None:
    """The first form is replayed with the value of the recording, as the guide says."""
    one = torch.ones(2, device="xla")
    for compute, is_noticed in zip(UNNOTICED[name], (False, True), strict=True):
        met.clear_counters()
        step = train_with(compute)
        equal = [step(one, i + 0.5)[0].item() == compute(i + 0.5) + i + 0.5 for i in range(2, 13)]
        assert equal[:4] == [True] * 4
        assert (all(equal), met.counter_value("ReplayedSteps")) == ((True, None) if is_noticed else (False, 9))


def test_types_are_those_of_the_module() -> None:
    """A recorded step makes instances of the original types, and may subclass them, and so do its imports."""
    originals = decimal.Decimal, struct.Struct, json.JSONEncoder.encode, statistics.fsum  # type: ignore[attr-defined]
    found: list[Any] = []

    def compute(x: torch.Tensor) -> torch.Tensor:
        imported = types.ModuleType("imported_by_a_step")
        sys.modules[imported.__name__] = imported
        exec("import math\nfrom decimal import Decimal\nfrom math import sqrt", vars(imported))
        derived = type("Derived", (object,), {})
        packed = struct.Struct("d")
        made = types.new_class("Money", (decimal.Decimal,))
        found[:] = [
            isinstance(Decimal(1), decimal.Decimal),
            isinstance(packed, struct.Struct),
            packed.size,
            made("2.5"),
        ]
        found.append(issubclass(made, decimal.Decimal) and not issubclass(derived, decimal.Decimal))
        found.append(Decimal == originals[0])
        return x * 2

    try:
        assert torch_xla.compile(compute, replay=True)(torch.ones(1, device="xla")).item() == 2
        imported = vars(sys.modules["imported_by_a_step"])
        assert (imported["Decimal"], imported["sqrt"]) == (Decimal, sys.modules["math"].sqrt)
    finally:
        sys.modules.pop("imported_by_a_step", None)
    assert found[:3] == [True, True, 8]
    assert [type(found[3]).__mro__[1], *found[4:]] == [Decimal, True, True]
    assert originals == (decimal.Decimal, struct.Struct, json.JSONEncoder.encode, statistics.fsum)  # type: ignore[attr-defined]
    assert Decimal is originals[0]
    assert type(decimal.Decimal) is type
