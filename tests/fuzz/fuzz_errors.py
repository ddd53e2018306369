"""Calls operators with what does not fit, on the CPU and on xla, and prints calls that one of the two does not reject.

    python tests/fuzz/fuzz_errors.py [first [step [patterns]]]

A line is a JSON list: operator, arguments, the CPU's outcome, xla's outcome. stderr names each call before it is made.

Run by test_errors_fuzz.py in a separate process, whose death would be a failure.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import torch_xla

#: Arguments by name, made for a device.
POOL: dict[str, Callable[[str], Any]] = {
    "f23": lambda d: torch.ones(2, 3, device=d),
    "f45": lambda d: torch.ones(4, 5, device=d),
    "f3": lambda d: torch.ones(3, device=d),
    "f1234": lambda d: torch.ones(1, 2, 3, 4, device=d),
    "f0": lambda d: torch.ones((), device=d),
    "empty": lambda d: torch.ones(0, 3, device=d),
    "i23": lambda d: torch.ones(2, 3, dtype=torch.int64, device=d),
    "b23": lambda d: torch.ones(2, 3, dtype=torch.bool, device=d),
    "c23": lambda d: torch.ones(2, 3, dtype=torch.complex64, device=d),
    "none": lambda d: None,
    "two": lambda d: 2,
    "nine": lambda d: 9,
    "minus": lambda d: -7,
    "half": lambda d: 0.5,
    "text": lambda d: "no",
    "list": lambda d: [1, 2],
    "tensors": lambda d: [torch.ones(2, device=d), torch.ones(3, 3, device=d)],
    "dtype": lambda d: torch.int32,
}

#: Patterns of arguments, each for every operator.
PATTERNS = [
    ("f23",), ("i23",), ("b23",), ("c23",), ("f0",), ("tensors",), ("none",),
    ("f23", "f45"), ("f23", "i23"), ("i23", "half"), ("f1234", "f3"), ("b23", "two"),
    ("f23", "nine"), ("f0", "minus"), ("f23", "none"), ("f23", "text"), ("f23", "list"), ("empty", "two"),
    ("f23", "f23", "f45"), ("f23", "two", "i23"), ("f1234", "f1234", "none"), ("f23", "minus", "half"),
    ("f23", "i23", "f3", "two"), ("f1234", "list", "list", "nine"),
]  # fmt: skip

#: Not operators, or not about errors: they draw random numbers, make or print something else, or change the process.
LEFT_OUT = {
    "compile", "save", "load", "from_file", "frombuffer", "from_numpy", "set_printoptions", "seed", "manual_seed",
    "initial_seed", "set_default_device", "set_default_dtype", "set_num_threads", "set_num_interop_threads", "cond",
    "get_default_device", "vmap", "slice_inverse", "typename", "classproperty", "is_tensor", "is_storage",
    "unsafe_split",
}  # fmt: skip


def operators() -> list[tuple[str, Callable[..., Any]]]:
    """Functions of torch and torch.nn.functional and methods of Tensor, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for space, owner in (("torch", torch), ("F", F), ("Tensor", Tensor), ("linalg", torch.linalg), ("fft", torch.fft)):
        for name in dir(owner):
            function = getattr(owner, name)
            if (
                name.startswith(("_", "fbgemm_"))
                or name in LEFT_OUT
                or isinstance(function, type)
                or not callable(function)
            ):
                continue
            if space == "torch" and not _is_operator(name):
                continue
            if space == "Tensor" and not (name.endswith("_") and _is_operator(name)):
                continue
            found[f"{space}.{name}"] = function
    return sorted(found.items())


def _is_operator(name: str) -> bool:
    return hasattr(torch.ops.aten, name)


def outcome(function: Callable[..., Any], pattern: tuple[str, ...], device: str) -> str:
    """``ok`` or the type of the exception."""
    try:
        function(*(POOL[name](device) for name in pattern))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    return "ok"


def differences(first: int = 0, step: int = 1, patterns: int = 1) -> Iterator[list[str]]:
    """(operator, arguments, outcome on the CPU, outcome on xla) where the types differ.

    Every ``step``-th operator from number ``first`` on, every ``patterns``-th pattern of each.
    """
    for number, (name, function) in enumerate(operators()[first::step]):
        for pattern in PATTERNS[number % patterns :: patterns]:
            # Before the call, so that a process that dies has said in what.
            print(f"> {name} {' '.join(pattern)}", file=sys.stderr, flush=True)
            torch.manual_seed(0)
            expected, got = outcome(function, pattern, "cpu"), outcome(function, pattern, "xla")
            if expected.split(":")[0] != got.split(":")[0]:
                yield [name, " ".join(pattern), expected, got]
        torch_xla.sync()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in differences(*(int(argument) for argument in sys.argv[1:])):
        print(json.dumps(line), flush=True)
    print("done", flush=True)
