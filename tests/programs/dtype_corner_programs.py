"""Elementwise rules at extreme values, compared with eager CPU torch; run by test_dtype_corners.py."""

from __future__ import annotations

import contextlib
import json
import resource
from typing import Any

import torch

import torch_xla
from torch_xla._engine.lowering import RULES
from torch_xla.experimental import eager_mode

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip
#: Elementwise, without torch's tag.
_UNTAGGED = {
    "aten::floor_divide", "aten::rsub.Tensor", "aten::hardswish", "aten::fix", "aten::hardshrink_backward",
    "aten::hardsigmoid_backward", "aten::hardswish_backward", "aten::mish_backward",
}  # fmt: skip
#: What an argument without a default is, by its type in the schema; tensors are corners.
_FILLERS: dict[str, Any] = {"number": 2, "int": 2, "Optional[str]": "trunc"}
#: Integer division: min / -1 and x / 0 end the process on the CPU.
_DIVIDES = ("div.", "floor_divide", "remainder", "fmod", "lcm")
_PROGRAM = 48  #: cases in one program
_WIDEST = 128  #: elements per iteration of a vector loop: two vectors of 64 bytes of a one-byte dtype


def overload(name: str) -> Any:
    """Return the operator of a rule."""
    packet, _, suffix = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def names() -> list[str]:
    """Return the elementwise rules whose arguments are only tensors and numbers."""
    found = []
    for name, rule in RULES.items():
        if not name.startswith("aten::") or rule.random:
            continue
        try:
            op = overload(name)
        except AttributeError:  # other releases of torch have it: aten::cholesky until 2.13
            continue
        tagged = torch.Tag.pointwise in op.tags or name in _UNTAGGED
        needed = [str(a.type) for a in op._schema.arguments if not a.has_default_value()]
        if tagged and "Tensor" in needed and set(needed) <= {"Tensor", *_FILLERS}:
            found.append(name)
    return found


def corners(dtype: torch.dtype) -> torch.Tensor:
    """Return the extreme values of a dtype, their neighbors, and NaN and infinity."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        values = {limits.min, limits.min + 1, 0, 1, 2, 3, 7, limits.max - 1, limits.max} | (
            {-1, -2} if limits.min else set()
        )
        values |= {-1, -2} if limits.min else set()
        return torch.tensor(sorted(values), dtype=dtype)
    tiny = torch.finfo(dtype)
    return torch.tensor(
        [tiny.min, -tiny.max / 2, -2.0, -1.0, -0.5, -tiny.tiny, -tiny.smallest_normal / 4, -0.0, 0.0, tiny.tiny / 4,
         tiny.tiny, tiny.eps,
         0.5, 1.0, 1.5, 2.0, 3.0, tiny.max, float("inf"), float("-inf"), float("nan")], dtype=dtype,
    )  # fmt: skip


def _arguments(name: str, dtype: torch.dtype) -> list[Any]:
    needed = [str(a.type) for a in overload(name)._schema.arguments if not a.has_default_value()]
    count, values = needed.count("Tensor"), corners(dtype)
    if "polynomial" in name and dtype.is_floating_point:
        values = values[~values.isnan()]  # for NaN the CPU returns an uninitialized variable
    tensors = [values]
    if count > 1:
        second = values
        if "polynomial" in name:  # the CPU computes that number of terms
            second = torch.arange(0, 5).to(dtype)
        a, b = torch.cartesian_prod(values, second).unbind(1)
        if name.startswith(tuple(f"aten::{each}" for each in _DIVIDES)) and not dtype.is_floating_point:
            least = a.min() if "lcm" in name or dtype == torch.bool else None
            keep = (b != 0) & ~((a == values[0]) & (b == -1)) if least is None else (a != values[0]) & (b != values[0])
            a, b = a[keep], b[keep]
        tensors = [a, b, a.flip(0)][:count]
    given = iter([t.contiguous() for t in tensors])
    return [next(given) if kind == "Tensor" else _FILLERS[kind] for kind in needed]


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _values_on_cpu(op: Any, given: list[Any]) -> list[list[torch.Tensor]]:
    """Return the results of the vector loop and of the scalar loop of the CPU kernel, which differ at some values.

    The vector loop takes contiguous operands whose number of elements is a multiple of its width; what is left over
    and strided operands go through the scalar loop.
    """
    count = next(g.numel() for g in given if isinstance(g, torch.Tensor))

    def pad(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t, t[:1].expand(-count % _WIDEST)])

    def stride(t: torch.Tensor) -> torch.Tensor:
        return torch.stack([t, t], 1)[:, 0]

    loops = [_flat(op(*(change(g) if isinstance(g, torch.Tensor) else g for g in given))) for change in (pad, stride)]
    return [[result[:count].contiguous() for result in results] for results in zip(*loops, strict=True)]


def _is_subnormal(t: torch.Tensor) -> torch.Tensor:
    if not t.dtype.is_floating_point:
        return torch.zeros(t.shape, dtype=torch.bool)
    return (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)


def _same(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return whether values agree within a relative tolerance, including the sign of zeros."""
    near = torch.isclose(x, y, rtol=_TOLERANCE.get(y.dtype, 0), atol=0, equal_nan=True)
    return near & ((x != 0) | (x.signbit() == y.signbit()))


def _difference(found: list[torch.Tensor], wanted: list[list[torch.Tensor]], given: list[Any]) -> str | None:
    """Describe the differences, with prefix SUBNORMAL if each has a subnormal operand or CPU result."""
    operands = [g for g in given if isinstance(g, torch.Tensor)]
    for x, loops in zip(found, wanted, strict=True):
        x, y = x.cpu(), loops[0]
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
        differs = ~torch.stack([_same(x, each) for each in loops]).any(0)
        if differs.any():
            flushed = torch.stack([_is_subnormal(t) for t in (*operands, *loops)]).any(0)
            others = differs & ~flushed
            at = (others if others.any() else differs).flatten().nonzero().flatten().tolist()
            shown = [
                f"({', '.join(str(g.flatten()[i].item()) for g in operands)}) "
                f"{x.flatten()[i].item()}, not {y.flatten()[i].item()}"
                for i in at[:6]
            ]
            start = "" if others.any() else SUBNORMAL
            return f"{start}{len(at)} of {y.numel()}: {'; '.join(shown)}"
    return None


SUBNORMAL = "subnormal numbers alone: "
_TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5, torch.float64: 1e-7}


def main(way: str, dtype_name: str, wanted_names: list[str], seconds: int) -> None:
    """Print the difference of each rule from the CPU as JSON (null: none); stop after a CPU time limit."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if way == "eager":
        eager_mode(True)
    differences: dict[str, str | None] = {}
    for start in range(0, len(wanted_names), _PROGRAM):
        cases = []
        for name in wanted_names[start : start + _PROGRAM]:
            given, op = _arguments(name, DTYPES[dtype_name]), overload(name)
            with contextlib.suppress(RuntimeError, NotImplementedError):  # the CPU raises; other tests compare errors
                cases.append((name, given, _values_on_cpu(op, given)))
        print("running", *(name for name, _, _ in cases), flush=True)
        results = []
        for name, given, _ in cases:
            try:
                moved = [g.to("xla") if isinstance(g, torch.Tensor) else g for g in given]
                results.append(_flat(overload(name)(*moved)))
            except RuntimeError as error:
                differences[name] = f"{type(error).__name__}: {str(error)[:200]}"
                results.append([])
        torch_xla.sync()
        for (name, given, wanted), found in zip(cases, results, strict=True):
            if name not in differences:
                differences[name] = _difference(found, wanted, given)
    print(json.dumps(differences))
