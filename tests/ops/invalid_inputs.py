"""Makes calls for which torch raises, or which are edge cases that it allows, for every operator of its database.

wrong out   invalid out=: another dtype, another size, another device, elements that share memory
overlap     a result that overlaps an operand, by out= and in place
empty       reductions over dimensions without elements
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.opinfo.core import ReductionOpInfo
from torch.utils import _pytree

from tests.ops import database

KINDS = ("wrong out", "overlap", "empty")

#: Number of samples of each op to make calls from: operands of the same shape and dtype are rare.
_SAMPLES = {"wrong out": 2, "overlap": 40}


class Call(NamedTuple):
    """A labeled call. ``defined``: compare values if the CPU computes any; they are undefined otherwise."""

    label: str
    run: Callable[[str], Any]
    defined: bool = True


#: Dtypes of out= other than the result's.
_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64, torch.complex64)

#: Reductions that the database does not list as reductions, and scans.
_MORE_REDUCTIONS = frozenset({
    "aminmax", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "kthvalue", "log_softmax", "logcumsumexp",
    "logsumexp", "max (reduction_with_dim)", "median", "min (reduction_with_dim)", "mode", "msort", "nanmedian",
    "nn.functional.softmin", "quantile", "softmax", "sort", "std", "std_mean", "topk", "var", "var_mean",
})  # fmt: skip

#: torch's own kernels write past the end of an out= of the wrong size.
CRASH_TORCH = frozenset({"narrow_copy", "nn.functional.avg_pool3d"})


def calls(info: Any, dtype: torch.dtype, kind: str) -> Iterator[Call]:
    """Yield the calls of one op, dtype and kind."""
    if kind == "empty":
        yield from _empty(info, dtype)
        return
    for sample in database.samples(info, dtype, _SAMPLES[kind]):
        if kind == "wrong out" and info.supports_out and info.name not in CRASH_TORCH:
            yield from _wrong_outs(info, sample)
        elif kind == "overlap":
            yield from _overlaps(info, sample)


def _wider(out: torch.Tensor, result: torch.Tensor) -> bool:
    return out.dtype in (torch.float64, torch.complex64) and result.dtype != out.dtype and not result.is_complex()


def _results(info: Any, sample: Any) -> Any:
    """Return the op's results on the CPU; None if it raises, or returns anything but tensors with elements."""
    try:
        found = info.get_op()(*database.on("cpu", (sample.input, *sample.args)), **database.on("cpu", sample.kwargs))
    except Exception:
        return None
    leaves = _pytree.tree_leaves(found)
    full = leaves and all(isinstance(t, torch.Tensor) and t.numel() for t in leaves)
    return (tuple(found) if isinstance(found, (tuple, list)) else found) if full else None


def _wrong_outs(info: Any, sample: Any) -> Iterator[Call]:
    results = _results(info, sample)
    if results is None:
        return

    def call(make: Callable[[torch.Tensor, str], torch.Tensor]) -> Callable[[str], Any]:
        def run(device: str) -> Any:
            args, kwargs = database.on(device, ((sample.input, *sample.args), sample.kwargs))
            outs = _pytree.tree_map(lambda t: make(t, device), results)
            info.get_op()(*args, **kwargs, out=outs)
            # A wider out= holds values computed in the op's own dtype: compare in that dtype.
            return _pytree.tree_map(
                lambda out, t: (out.dtype, out.to(t.dtype) if _wider(out, t) else out), outs, results
            )

        return run

    ones = torch.ones
    for dtype in _DTYPES:
        yield Call(f"out of {dtype}", call(lambda t, device, d=dtype: ones(t.shape, dtype=d, device=device)))
    yield Call("out of another size", call(lambda t, device: ones((*t.shape, 2), dtype=t.dtype, device=device)))
    yield Call("out without elements", call(lambda t, device: ones(0, dtype=t.dtype, device=device)))
    if any(t.numel() > 1 for t in _pytree.tree_leaves(results)):
        yield Call("expanded out", call(lambda t, device: ones(1, dtype=t.dtype, device=device).expand(t.shape)), False)
    other = {"cpu": "meta", "xla": "cpu"}
    yield Call(
        "out on another device", call(lambda t, device: ones(t.shape, dtype=t.dtype, device=other[device])), False
    )


def _overlaps(info: Any, sample: Any) -> Iterator[Call]:
    first = sample.input
    if not isinstance(first, torch.Tensor) or first.numel() < 2:
        return

    def shifted(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first operand, and a tensor of its size that begins an element later in the same memory."""
        memory = torch.cat([first.detach().reshape(-1), first.detach().reshape(-1)[:1]]).to(device)
        return memory[:-1].view(first.shape), memory[1:].view(first.shape)

    def rest(device: str) -> tuple[Any, Any]:
        return database.on(device, (tuple(sample.args), sample.kwargs))

    def out(device: str) -> Any:
        operand, target = shifted(device)
        args, kwargs = rest(device)
        return info.get_op()(operand, *args, **kwargs, out=target)

    def in_place(number: int) -> Callable[[str], Any]:
        def run(device: str) -> Any:
            operand, target = shifted(device)
            args, kwargs = rest(device)
            return info.get_inplace()(target, *args[:number], operand, *args[number + 1 :], **kwargs)

        return run

    def expanded(device: str) -> Any:
        args, kwargs = rest(device)
        target = first.detach().reshape(-1)[:1].to(device).expand(first.shape)
        return info.get_inplace()(target, *args, **kwargs)

    result = _results(info, sample)
    if info.supports_out and isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (
        first.shape, first.dtype,
    ):  # fmt: skip
        yield Call("out overlaps the operand", out, False)
    if info.get_inplace() is not None and not sample.broadcasts_input:
        yield Call("in place, expanded", expanded, False)
        for number, arg in enumerate(sample.args):
            if isinstance(arg, torch.Tensor) and (arg.shape, arg.dtype) == (first.shape, first.dtype):
                yield Call(f"in place, overlaps argument {number}", in_place(number), False)


def _empty(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    if not isinstance(info, ReductionOpInfo) and database.name_of(info) not in _MORE_REDUCTIONS:
        return
    more = (0.5,) if info.name == "quantile" else (1,) if info.name in ("kthvalue", "topk") else ()
    for shape in ((0,), (2, 0), (0, 3), (2, 0, 3)):
        for dim in (None, *range(-1, len(shape))):
            for keepdim in (None, True):
                options = {"dim": dim} if dim is not None else {}
                if keepdim is not None:
                    options["keepdim"] = keepdim

                def run(device: str, shape: Any = shape, options: Any = options) -> Any:
                    return info.get_op()(torch.ones(shape, dtype=dtype, device=device), *more, **options)

                yield Call(f"{shape}, {options}", run)
