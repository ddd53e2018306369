"""Interactions of ops: programs that must return the CPU's results on xla, or raise the CPU's error.

Each case is a function of a device. xla must return what the CPU returns. If the CPU raises, xla must raise the same
type at the same line, before anything is computed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_xla
from tests.support.helpers import assert_same

Case = Callable[[str], Any]


def outcome(program: Case, device: str) -> tuple[Any, type[Exception] | None]:
    """Return (the program's result, None), or (the error message, the type of the error)."""
    try:
        return program(device), None
    except Exception as error:
        return str(error), type(error)


def check(programs: Mapping[str, Case]) -> None:
    """Record all programs before any is run: one graph, compiled once."""
    computed, differences = {}, []
    for name, program in programs.items():
        expected, cpu_error = outcome(program, "cpu")
        got, raised = outcome(program, "xla")
        if raised != cpu_error:
            differences.append(f"{name}: the CPU: {cpu_error} {expected}; xla: {raised} {got}")
        elif cpu_error is None:
            computed[name] = got, expected
    torch_xla.sync()
    for name, (got, expected) in computed.items():
        try:
            assert_same(got, expected)
        except AssertionError as error:
            differences.append(f"{name}: {error}")
    assert not differences, "\n\n".join(differences)


def complexes(device: str) -> Tensor:
    return torch.tensor([[1 + 2j, 3 - 1j], [-2j, 4 + 0j]], device=device)


def written(view: Callable[[Tensor], Tensor], write: Callable[[Tensor], Any], base: Callable[[str], Tensor]) -> Case:
    """Return a program that writes through a view, and returns the base, the view, and an earlier view."""

    def program(device: str) -> list[Tensor]:
        x = base(device)
        before = x[0]
        shown = view(x)
        write(shown)
        return [x, shown.clone(), before]

    return program


#: Views whose elements are conjugates, negatives or components of the stored values.
LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda x: x.conj(),
    "conj_of_conj": lambda x: x.conj().conj(),
    "mH": lambda x: x.mH,
    "adjoint": lambda x: x.adjoint(),
    "conj_select": lambda x: x.conj()[0],
    "select_conj": lambda x: x[0].conj(),
    "conj_slice_t": lambda x: x.conj()[:, 1:].t(),
    "neg": lambda x: x._neg_view(),
    "neg_conj": lambda x: x._neg_view().conj(),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj_real": lambda x: x.conj().real,
    "conj_imag": lambda x: x.conj().imag,
    "conj_imag_select": lambda x: x.conj().imag[1],
    "mH_imag": lambda x: x.mH.imag,
    "as_real_of_resolved": lambda x: torch.view_as_real(x),
    "conj_expand": lambda x: x[:1].conj().expand(1, 2),
    "conj_diagonal": lambda x: x.conj().diagonal(),
    "conj_unfold": lambda x: x.conj().unfold(0, 1, 1),
}

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda v: v.add_(2),
    "mul_": lambda v: v.mul_(3),
    "fill_": lambda v: v.fill_(5),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(torch.arange(1, v.numel() + 1, device=v.device).reshape(v.shape)),
    "copy_itself": lambda v: v.copy_(v.clone() * 2),
    "setitem": lambda v: v.__setitem__(0, 7),
    "setitem_mask": lambda v: v.__setitem__(v.abs() > 1, 9),
    "index_add_": lambda v: v.index_add_(0, torch.tensor([0], device=v.device), torch.ones_like(v[:1]).contiguous()),
    "neg_": lambda v: v.neg_(),
    "out=": lambda v: torch.mul(torch.ones_like(v).contiguous(), 4, out=v),
    "conj_physical_": lambda v: v.conj_physical_(),
    "random-free normal": lambda v: v.uniform_(3, 3) if not v.is_complex() else v.add_(1),
}

COMPLEX_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_ complex": lambda v: v.add_(1 + 2j),
    "fill_ complex": lambda v: v.fill_(1 + 2j),
    "copy_ complex": lambda v: v.copy_(torch.full_like(v, 3 - 4j).clone()),
    "copy_ conj": lambda v: v.copy_(torch.full_like(v, 3 - 4j).conj()),
    "imag.fill_": lambda v: v.imag.fill_(2),
    "imag.copy_": lambda v: v.imag.copy_(v.real.clone()),
    "sqrt_": lambda v: v.sqrt_(),
}


@pytest.mark.parametrize("view", LAZY)
def test_writes_through_lazy_views(view: str) -> None:
    is_complex = LAZY[view](complexes("cpu")).is_complex()
    writes = WRITES | (COMPLEX_WRITES if is_complex else {})
    check({name: written(LAZY[view], write, complexes) for name, write in writes.items()})


def test_writes_through_negatives_of_real_numbers() -> None:
    programs = {}
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        numbers = lambda d, dtype=dtype: torch.arange(6, device=d).to(dtype).view(2, 3)
        for name in ("add_", "fill_", "copy_", "setitem", "index_add_"):
            programs[f"{name} {dtype}"] = written(lambda x: x._neg_view(), WRITES[name], numbers)
            programs[f"{name} {dtype} of a part"] = written(lambda x: x._neg_view()[:, 1:].t(), WRITES[name], numbers)
    check(programs)


INF, NAN = float("inf"), float("nan")
BYTES = torch.uint8

#: CPU kernels use an iterator with 64 dims, or a 64-bit set of dims; views do not.
OF_MANY_DIMS: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0), "add": lambda x: x + x, "exp": lambda x: x.exp(),
    "clone": lambda x: x.clone(), "sum": lambda x: x.sum(), "sum 0": lambda x: x.sum(0), "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(0), "cumsum": lambda x: x.cumsum(0), "softmax": lambda x: x.softmax(0),
    "sort": lambda x: x.sort(0).values, "cat": lambda x: torch.cat([x, x]), "where": lambda x: x.where(x > 0, x),
    "permute": lambda x: x.permute(*reversed(range(x.dim()))).reshape(-1), "tril": lambda x: x.tril(), "gelu": F.gelu,
    "index_select": lambda x: x.index_select(0, torch.tensor([0], device=x.device)), "add_": lambda x: x.add_(1),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)), "fill_": lambda x: x.fill_(2),
    "to": lambda x: x.to(torch.int32), "repeat": lambda x: x.repeat(x.shape), "matmul": lambda x: x @ x,
    "stack": lambda x: torch.stack([x, x]), "ones_like": torch.ones_like, "unsqueeze": lambda x: x[None] + 1,
    "copy_": lambda x: x.copy_(x[:1] * 2), "var": lambda x: x.var(0, correction=0), "pad": lambda x: F.pad(x, (0, 1)),
}  # fmt: skip
#: Cases that the CPU has no kernel for; xla computes them, or fails at compile time.
NOT_REFUSED = {("logcumsumexp", torch.int64)}

#: Programs that return a tensor, or tensors, or raise.
PROGRAMS: dict[str, dict[str, Case]] = {
    "numbers that do not fit a dtype": {
        "full": lambda d: torch.full((2,), 300, dtype=BYTES, device=d),
        "full -1": lambda d: torch.full((2,), -1, dtype=BYTES, device=d),
        "full -300": lambda d: torch.full((2,), -300, dtype=BYTES, device=d),
        "full int32": lambda d: torch.full((2,), 3e10, dtype=torch.int32, device=d),
        "full half": lambda d: torch.full((2,), 1e10, dtype=torch.float16, device=d),
        "full inf": lambda d: torch.full((2,), INF, dtype=torch.float16, device=d),
        "full complex": lambda d: torch.full((2,), 1 + 2j, dtype=torch.float32, device=d),
        "full_like": lambda d: torch.full_like(torch.ones(2, dtype=BYTES, device=d), 256),
        "new_full": lambda d: torch.ones(2, dtype=BYTES, device=d).new_full((2,), 256),
        "fill_": lambda d: torch.zeros(2, dtype=BYTES, device=d).fill_(300),
        "fill_ bool": lambda d: torch.zeros(2, dtype=torch.bool, device=d).fill_(300),
        "fill_ complex": lambda d: torch.zeros(2, device=d).fill_(1j),
        "setitem": lambda d: torch.zeros(2, dtype=BYTES, device=d).__setitem__(0, 300),
        "masked_fill": lambda d: torch.ones(2, dtype=BYTES, device=d).masked_fill(torch.ones(2, device=d) > 0, 300),
        "masked_fill_": lambda d: torch.ones(2, dtype=BYTES, device=d).masked_fill_(torch.ones(2, device=d) > 0, 300),
        "index_fill": lambda d: torch.ones(2, dtype=BYTES, device=d).index_fill(0, torch.tensor([0], device=d), 300),
        "index_fill_": lambda d: torch.ones(2, dtype=BYTES, device=d).index_fill_(0, torch.tensor([0], device=d), 300),
        "scatter": lambda d: torch.ones(2, dtype=BYTES, device=d).scatter(0, torch.tensor([0], device=d), 300),
        "scatter_": lambda d: torch.ones(2, dtype=BYTES, device=d).scatter_(0, torch.tensor([0], device=d), 300),
        "pad": lambda d: F.pad(torch.ones(2, dtype=BYTES, device=d), (1, 1), value=300),
        "clamp": lambda d: torch.ones(2, dtype=BYTES, device=d).clamp(max=300),
        "clamp_": lambda d: torch.ones(2, dtype=BYTES, device=d).clamp_(min=-1),
        "clamp_min": lambda d: torch.ones(2, dtype=BYTES, device=d).clamp_min(300),
        "clamp float": lambda d: torch.ones(2, dtype=BYTES, device=d).clamp(max=1e9),
        "where": lambda d: torch.where(torch.ones(2, device=d) > 0, torch.ones(2, dtype=BYTES, device=d), 300),
        "scalar_tensor": lambda d: torch.scalar_tensor(300, dtype=BYTES, device=d),
        "add": lambda d: torch.zeros(2, dtype=BYTES, device=d) + 300,
        "mul_": lambda d: torch.ones(2, dtype=BYTES, device=d).mul_(300),
        "eq": lambda d: torch.ones(2, dtype=BYTES, device=d) == 300,
    },
    "bounds of random numbers": {
        **{
            f"random_{bounds} {dtype}": lambda d, b=bounds, t=dtype: torch.zeros(3, dtype=t, device=d).random_(*b) * 0
            for bounds in ((3, 1), (-5,), (0, 300), (-200, 100), (1 << 40,), (0, 1), (5, None))
            for dtype in (torch.int8, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bool)
            if not (dtype == torch.float16 and bounds == (0, 300))
        },
        "randint": lambda d: torch.randint(0, 300, (3,), device=d, dtype=torch.int8),
        "randint none": lambda d: torch.randint(3, 1, (3,), device=d),
        "randint good": lambda d: torch.randint(3, 4, (3,), device=d),
        "randint_like": lambda d: torch.randint_like(torch.zeros(3, device=d, dtype=BYTES), 300),
        "randint_like low": lambda d: torch.randint_like(torch.zeros(3, device=d, dtype=BYTES), -1, 3),
        "normal_": lambda d: torch.zeros(3, device=d).normal_(0, -1),
        "exponential_": lambda d: torch.zeros(3, device=d).exponential_(-1),
        "geometric_": lambda d: torch.zeros(3, device=d).geometric_(1.5),
        "cauchy_": lambda d: torch.zeros(3, device=d).cauchy_(0, -1),
        "log_normal_": lambda d: torch.zeros(3, device=d).log_normal_(0, -1),
        "uniform_": lambda d: torch.zeros(3, device=d).uniform_(2, 1),
    },
    "powers": {
        "int ** -1": lambda d: torch.tensor([2, 3], device=d) ** -1,
        "int ** -2": lambda d: torch.tensor([2, 3], device=d) ** -2,
        "int.pow_(-1)": lambda d: torch.tensor([2, 3], device=d).pow_(-1),
        "int ** tensor": lambda d: torch.tensor([2, 1, -1, 0], device=d) ** torch.tensor([-1] * 4, device=d),
        "int ** -1.0": lambda d: torch.tensor([2, 4], device=d) ** -1.0,
        "2 ** int": lambda d: 2 ** torch.tensor([2, -3], device=d),
    },
    "more than 64 dims": {
        **{
            f"{name} of {dims}": lambda d, f=function, n=dims: f(torch.ones((1,) * n, device=d)).view(-1)
            for name, function in OF_MANY_DIMS.items()
            for dims in (64, 65)
        },
        "full": lambda d: torch.full((1,) * 65, 2.0, device=d).view(-1),
    },
    "reductions of nothing": {
        f"{name} along {dim} of {dtype}": lambda d, n=name, k=dim, t=dtype: getattr(
            torch.zeros(0, 3, dtype=t, device=d), n
        )(k)
        for name in (
            "median", "nanmedian", "mode", "max", "min", "amax", "amin", "argmax", "argmin", "sum", "prod", "mean",
            "cummax", "cumsum", "logcumsumexp", "softmax", "sort", "argsort", "any", "all", "count_nonzero", "var",
            "logsumexp", "norm", "nansum", "unbind",
        )
        for dim in (0, 1)
        for dtype in (torch.float32, torch.int64)
        if (name, dtype) not in NOT_REFUSED
    } | {
        "median of all": lambda d: torch.zeros(0, device=d).median(),
        "median of all ints": lambda d: torch.zeros(0, device=d, dtype=torch.int64).median(),
        "kthvalue": lambda d: torch.zeros(0, 3, device=d).kthvalue(1, 0),
        "aminmax": lambda d: torch.zeros(0, 3, device=d).aminmax(dim=0),
        "topk": lambda d: torch.zeros(0, 3, device=d).topk(0, 0),
        "quantile": lambda d: torch.zeros(0, 3, device=d).quantile(0.5, 0),
        **{
            f"norm {p}": lambda d, p=p: torch.linalg.vector_norm(torch.zeros(0, 3, device=d), p, 0)
            for p in (INF, -INF, -1, 0, 2)
        },
    },
    "empty dimensions": {
        "conv 0 in": lambda d: F.conv2d(torch.zeros(2, 0, 5, 5, device=d), torch.zeros(3, 0, 3, 3, device=d)),
        "conv 0 in, bias": lambda d: F.conv2d(
            torch.zeros(2, 0, 5, 5, device=d), torch.zeros(3, 0, 3, 3, device=d), torch.ones(3, device=d)
        ),
        "conv 0 batch": lambda d: F.conv1d(torch.zeros(0, 2, 5, device=d), torch.zeros(3, 2, 3, device=d)),
        "conv 0 out": lambda d: F.conv2d(torch.zeros(2, 2, 5, 5, device=d), torch.zeros(0, 2, 3, 3, device=d)),
        "conv_transpose": lambda d: F.conv_transpose2d(
            torch.zeros(0, 2, 5, 5, device=d), torch.zeros(2, 3, 3, 3, device=d)
        ),
        "gradient of conv": lambda d: convolution_gradients(d, 0, 1),
        "gradient of grouped conv": lambda d: convolution_gradients(d, 0, 2),
        "gradient of depthwise conv": lambda d: convolution_gradients(d, 0, 4),
        "grid_sample 0 batch": lambda d: F.grid_sample(
            torch.ones(0, 1, 3, 3, device=d), torch.zeros(0, 2, 2, 2, device=d), align_corners=False
        ),
        "grid_sample 0 channels": lambda d: F.grid_sample(
            torch.ones(1, 0, 3, 3, device=d), torch.zeros(1, 2, 2, 2, device=d), align_corners=False
        ),
        "grid_sample 0 points": lambda d: F.grid_sample(
            torch.ones(1, 1, 3, 3, device=d), torch.zeros(1, 0, 2, 2, device=d), align_corners=False
        ),
        "index": lambda d: torch.zeros(0, 5, device=d)[torch.tensor([0], device=d)],
        "index none": lambda d: torch.zeros(0, 5, device=d)[torch.tensor([], dtype=torch.long, device=d)],
        "take": lambda d: torch.zeros(0, 5, device=d).take(torch.tensor([0], device=d)),
        "two values to no places": lambda d: torch.zeros(3, device=d).__setitem__([], torch.tensor([1.0, 2], device=d)),
        "one value to no places": lambda d: torch.zeros(3, device=d).__setitem__([], torch.tensor([1.0], device=d)),
    },
    "strides and offsets": {
        "beyond the end": lambda d: torch.zeros(4, device=d).as_strided((3,), (2,)),
        "beyond the end, offset": lambda d: torch.zeros(4, device=d).as_strided((2,), (1,), 3),
        "negative": lambda d: torch.zeros(4, device=d).as_strided((2,), (-1,), 3),
        "in place": lambda d: torch.zeros(4, device=d).as_strided_((3,), (2,)),
        "copy": lambda d: torch.as_strided_copy(torch.zeros(4, device=d), (3,), (2,)),
        "scatter": lambda d: torch.zeros(4, device=d).as_strided_scatter(torch.ones(3, device=d), (3,), (2,)),
        "empty": lambda d: torch.zeros(4, device=d).as_strided((0,), (2,), 9),
        "last": lambda d: torch.arange(4.0, device=d).as_strided((2,), (3,)),
        "of a view": lambda d: torch.arange(6.0, device=d)[2:].as_strided((2,), (2,)),
        "of a transpose": lambda d: torch.arange(6.0, device=d).view(2, 3).t()[1:].as_strided((2, 2), (1, 3)),
        "of a view, offset": lambda d: torch.arange(6.0, device=d)[2:].as_strided((2,), (2,), 0),
        "of a view, beyond": lambda d: torch.arange(6.0, device=d)[2:].as_strided((3,), (2,)),
        "of conjugates": lambda d: complexes(d).conj()[1].as_strided((2,), (1,)),
        "view as longer, odd offset": lambda d: torch.zeros(5, device=d)[1:].view(torch.float64),
        "view as longer, even offset": lambda d: torch.zeros(6, device=d)[2:].view(torch.float64),
        "view as longer, strides": lambda d: torch.zeros(4, 3, device=d).t().view(torch.float64),
        "view as shorter, strides": lambda d: torch.zeros(4, 4, device=d)[:, 1:].view(torch.float16),
    },
    "dtypes": {
        "int[i] = float": lambda d: torch.zeros(3, dtype=torch.int64, device=d).__setitem__(
            torch.tensor([0], device=d), torch.tensor([1.5], device=d)
        ),
        "index_copy": lambda d: torch.zeros(3, dtype=torch.int64, device=d).index_copy(
            0, torch.tensor([0], device=d), torch.tensor([1.5], device=d)
        ),
        "batch_norm": lambda d: F.batch_norm(
            torch.ones(2, 3, device=d), torch.ones(3, device=d).double(), torch.ones(3, device=d).double()
        ),
        "layer_norm": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (3,), torch.ones(3, device=d).double()),
        "complex <": lambda d: complexes(d) < complexes(d),
        "complex max": lambda d: complexes(d).max(),
        **{
            f"{f.__name__} of ints": lambda d, f=f: f(torch.ones(3, dtype=torch.int64, device=d))
            for f in (F.gelu, F.silu, F.softplus, F.mish, F.relu, F.hardtanh, F.logsigmoid, F.elu, torch.sigmoid)
        },
        "softmax": lambda d: torch.ones(3, dtype=torch.int64, device=d).softmax(0),
        "log_softmax": lambda d: torch.ones(3, dtype=torch.int64, device=d).log_softmax(0),
        **{
            f"{f.__name__}({source}, out={target})": lambda d, f=f, s=source, t=target: f(
                torch.ones(2, dtype=s, device=d), out=torch.zeros(2, dtype=t, device=d)
            )
            for f in (torch.neg, torch.floor, torch.sign, torch.abs, torch.ceil, torch.round, torch.sqrt, torch.exp)
            for source, target in (
                (torch.int64, torch.float32), (torch.float32, torch.float64), (torch.float32, torch.int64)
            )
        },
        "add out=": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.zeros(2, device=d).double()),
        "mm out=": lambda d: torch.mm(
            torch.ones(2, 2, device=d), torch.ones(2, 2, device=d), out=torch.zeros(2, 2, device=d).double()
        ),
        "take out=": lambda d: torch.take(
            torch.ones(2, device=d), torch.tensor([0], device=d), out=torch.zeros(1, device=d).double()
        ),
    },
    "edges of functions": {
        "fftfreq": lambda d: [torch.fft.fftfreq(n, device=d) for n in range(1, 8)],
        "rfftfreq": lambda d: [torch.fft.rfftfreq(n, device=d) for n in range(1, 8)],
        "kaiser_window": lambda d: [
            torch.kaiser_window(n, periodic=p, beta=b, device=d)
            for n in (0, 1, 2, 7) for p in (True, False) for b in (12.0, 3.0)
        ],
        "kaiser_window of one argument": lambda d: torch.kaiser_window(7, device=d, dtype=torch.float64),
        "kaiser_window of two": lambda d: torch.kaiser_window(7, False, device=d),
        "ldexp": lambda d: torch.ldexp(
            torch.tensor([1e-30, 1e30, 1.0, 2e-38, 0.0, INF, NAN, 3.0], device=d),
            torch.tensor([140, -140, -140, 126, 3000, -3000, 3, 3000], device=d),
        ),
        "ldexp double": lambda d: torch.ldexp(
            torch.tensor([1e-300, 1e300, -1.5], device=d, dtype=torch.float64), torch.tensor([1990, -1990, 3], device=d)
        ),
        **{
            f"grid_sample {mode} {padding}": lambda d, m=mode, p=padding: F.grid_sample(
                torch.arange(1.0, 10, device=d).view(1, 1, 3, 3).expand(4, 1, 3, 3),
                torch.tensor([NAN, INF, -INF, 0.3], device=d).view(4, 1, 1, 1).expand(4, 2, 2, 2),
                mode=m, padding_mode=p, align_corners=False,
            )
            for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
        },
        **{
            f.__name__: lambda d, f=f: f(
                torch.tensor([INF, 0.0, 1.0, NAN, -1.0], device=d)[:, None],
                torch.tensor([INF, 0.0, 1.0, NAN, -1.0], device=d),
            )
            for f in (torch.igamma, torch.igammac)
        },
        "complex abs": lambda d: edges(d).abs(),
        "complex exp": lambda d: edges(d).exp(),
        "complex sqrt": lambda d: torch.tensor(
            [complex(-4, -0.0), complex(-4, 0.0), complex(-INF, 1), complex(1, INF), complex(1, -INF)], device=d
        ).sqrt(),
    },
    "resized views": {
        "shorter": lambda d: resized(d, lambda x: x[1:3], (1,)),
        "longer": lambda d: resized(d, lambda x: x[1:3], (3,)),
        "from empty": lambda d: resized(d, lambda x: x[2:2], (4,)),
        "another shape": lambda d: resized(d, lambda x: x[1:], (2, 2)),
        "of what is viewed": lambda d: resized_base(d),
        "of a transpose": lambda d: resized(d, lambda x: x.view(2, 3).t()[1:], (2,)),
        "out=": lambda d: resized(d, lambda x: torch.arange(2, out=x[2:2]), (2,)),
    },
    "memory that is read and written": {
        "copy_ of the next": lambda d: shifted(d, lambda x: x[:-1].copy_(x[1:])),
        "copy_ of the one before": lambda d: shifted(d, lambda x: x[1:].copy_(x[:-1])),
        "copy_ of itself": lambda d: shifted(d, lambda x: x[1:].copy_(x[1:])),
        "copy_ of another part": lambda d: shifted(d, lambda x: x[:2].copy_(x[2:4])),
        "copy_ of every other": lambda d: shifted(d, lambda x: x[:4].view(2, 2)[:, 0].copy_(x[1:3])),
        "out= of the next": lambda d: shifted(d, lambda x: torch.add(x[1:], 1, out=x[:-1])),
        "out= of itself": lambda d: shifted(d, lambda x: torch.add(x[1:], 1, out=x[1:])),
        "out= of another part": lambda d: shifted(d, lambda x: torch.mul(x[:2], x[1:3], out=x[3:5])),
    },
    "targets": {
        **{
            f"nll_loss {dtype}": lambda d, t=dtype: F.nll_loss(
                torch.arange(6.0, device=d).view(2, 3), torch.tensor([1, 2], dtype=t, device=d)
            )
            for dtype in (torch.uint8, torch.int32, torch.int64)
        },
        "nll_loss2d": lambda d: F.nll_loss(
            torch.arange(12.0, device=d).view(2, 3, 2), torch.tensor([[1, 2], [0, 1]], dtype=BYTES, device=d)
        ),
        "cross_entropy": lambda d: cross_entropy_gradient(d),
    },
    "inference mode": {
        "slices written": lambda d: inference(d, lambda x: x[1:3].fill_(5)),
        "setitem": lambda d: inference(d, lambda x: x.__setitem__(slice(1, 3), 5)),
        "row added to": lambda d: inference(d, lambda x: x[0].add_(1)),
        "index_copy_": lambda d: inference(
            d, lambda x: x.view(2, 2)[0].index_copy_(0, torch.tensor([1], device=d), torch.ones(1, device=d))
        ),
        "as_strided": lambda d: inference(d, lambda x: x.as_strided((2,), (2,)).fill_(3)),
        "detached": lambda d: inference(d, lambda x: x.detach()[1:].fill_(3)),
        **{
            f"{name}, written outside": lambda d, view=view: written_outside(d, view)
            for name, view in {
                "itself": lambda x: x, "detached": lambda x: x.detach(), "data": lambda x: x.data,
                "detached twice": lambda x: x.detach().detach(), "view of detached": lambda x: x.detach()[1:],
                "alias": torch.ops.aten.alias, "row": lambda x: x[0], "view": lambda x: x.view(2, 2),
            }.items()
        },
    },
}  # fmt: skip


def edges(device: str) -> Tensor:
    parts = (INF, -INF, NAN, 1.0)
    # CPUs differ on exp(inf + i y): the vectorized code returns nan where libc returns inf.
    return torch.tensor([complex(a, b) for a in parts for b in parts if not (a == INF and b != 1.0)], device=device)


def convolution_gradients(device: str, batch: int, groups: int) -> list[Tensor | None]:
    x = torch.zeros(batch, 4, 5, 5, device=device, requires_grad=True)
    weight = torch.ones(4, 4 // groups, 3, 3, device=device, requires_grad=True)
    bias = torch.ones(4, device=device, requires_grad=True)
    F.conv2d(x, weight, bias, groups=groups).sum().backward()
    return [x.grad, weight.grad, bias.grad]


def shifted(device: str, write: Callable[[Tensor], Any]) -> Tensor:
    x = torch.arange(6.0, device=device)
    write(x)
    return x


def resized_base(device: str) -> list[Tensor]:
    x = torch.zeros(4, device=device)
    view = x[:]
    return [x.resize_(2).fill_(7), view]


def resized(device: str, view: Callable[[Tensor], Tensor], size: tuple[int, ...]) -> list[Tensor]:
    x = torch.arange(6.0, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        shown = view(x)
        shown.resize_(size)
    shown.mul_(2).add_(1)
    return [x, shown.clone()]


def test_resized_views_beyond_their_storage() -> None:
    """They extend into the next elements of their memory, contiguously; later elements are undefined."""

    def grown(device: str) -> list[Tensor]:
        across = torch.arange(6.0, device=device).reshape(2, 3).t()
        expanded = torch.arange(3.0, device=device).expand(2, 3)
        conjugate = complexes(device).mH
        lengths = (6, 3, 4)
        return [x.resize_(9)[:n].clone() for x, n in zip((across, expanded, conjugate), lengths, strict=True)]

    assert_same(grown("xla"), grown("cpu"))
    with pytest.raises(
        NotImplementedError, match=r"aten::resize_: resizing a view of Float\[2, 2\] .* resize its clone"
    ):
        complexes("xla").real.resize_(3)


def cross_entropy_gradient(device: str) -> Tensor | None:
    x = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
    F.cross_entropy(x, torch.tensor([1, 2], dtype=BYTES, device=device)).backward()
    return x.grad


def written_outside(device: str, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of inference mode after a view of it is written outside."""
    with torch.inference_mode():
        made = torch.ones(4, device=device)
    view(made).mul_(2)
    return made.clone()


def inference(device: str, write: Callable[[Tensor], Any]) -> list[Tensor]:
    x = torch.zeros(4, device=device)
    with torch.inference_mode():
        write(x)
        made = torch.ones(4, device=device)
        write(made)
        assert made[1:].is_inference() and not x[1:].is_inference()
    assert made[1:].is_inference() and made.view(2, 2).is_inference() and not x[1:].is_inference()
    return [x, made.clone()]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs(kind: str) -> None:
    check(PROGRAMS[kind])


#: Checks that the CPU makes before converting: complex numbers for real tensors, floats for integers.
BY_VALUE: dict[str, Case] = {
    f"{name} of {value} into {dtype}": lambda d, f=function, v=value, t=dtype: f(
        torch.ones(3, dtype=t, device=d), torch.tensor(v, device=d), torch.tensor([True, False, True], device=d)
    )
    for name, function in {
        "masked_fill": lambda x, v, mask: x.masked_fill(mask, v),
        "masked_fill_": lambda x, v, mask: x.masked_fill_(mask, v),
        "x[mask] =": lambda x, v, mask: x.__setitem__(mask, v),
        "index_fill": lambda x, v, mask: x.index_fill(0, mask.nonzero()[:, 0], v),
    }.items()
    for value in (1j, 1 + 0j, 1.5, NAN, 1e30)
    for dtype in (torch.int64, torch.int8, torch.float32, torch.bool)
    if isinstance(value, complex) or dtype != torch.float32
}


@pytest.mark.filterwarnings("ignore:torch_xla.:UserWarning")
def test_device_only_values() -> None:
    check(BY_VALUE)


def test_invalid_weights_give_a_category() -> None:
    """The error is raised once; the values exist and are categories."""
    for weights in ([0.0, 0.0], [NAN, 1.0], [-1.0, 1.0], [INF, 1.0]):
        drawn = torch.multinomial(torch.tensor(weights, device="xla"), 64, replacement=True)
        with pytest.raises(RuntimeError, match=r"probability tensor contains|invalid multinomial distribution"):
            drawn.tolist()
        assert set(drawn.tolist()) <= {0, 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_matmuls(dtype: torch.dtype) -> None:
    """Grouped matmul, as in mixtures of experts: groups of rows, of columns, of the contracted dim, of matrices."""
    numbers = torch.Generator().manual_seed(0)

    def program(a: Tensor, b: Tensor, grouped: bool) -> Case:
        def run(device: str) -> list[Tensor | None]:
            x, y = (t.detach().clone().to(device).requires_grad_() for t in (a, b))
            ends = torch.tensor([4, 4, 16], dtype=torch.int32, device=device) if grouped else None
            product = F.grouped_mm(x, y, offs=ends)
            product.backward(torch.ones_like(product))  # the gradient of sum() has strides of 0, which the CPU rejects
            return [product, x.grad, y.grad]

        return run

    shapes = {
        "rows": ((16, 8), (3, 8, 16)),
        "columns": ((3, 16, 8), (8, 16)),
        "sums": ((8, 16), (16, 8)),
        "batch": ((3, 8, 8), (3, 8, 16)),
    }
    # Small integers: sums are exact in any order.
    made = {n: [torch.randint(-3, 4, s, generator=numbers).to(dtype) for s in both] for n, both in shapes.items()}
    check({name: program(a, b, name != "batch") for name, (a, b) in made.items()})


def test_padding_of_an_encoder_is_zero() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)

    def program(encoder: torch.nn.Module, mask: Any, grad: bool) -> Case:
        def run(device: str) -> Tensor:
            padding = torch.tensor(mask, dtype=torch.bool, device=device)
            with torch.set_grad_enabled(grad):
                result: Tensor = copy.deepcopy(encoder).to(device)(x.to(device), src_key_padding_mask=padding)
            return result.detach()

        return run

    programs = {}
    for norm in (None, torch.nn.LayerNorm(8)):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2, norm=norm).eval()
        for mask in ([[0, 0, 1], [0, 1, 1]], [[0, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 1]]):
            for grad in (True, False):
                programs[f"{norm} {mask} {grad}"] = program(encoder, mask, grad)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        check(programs)


def test_nested_tensors_say_what_to_use_instead() -> None:
    with pytest.raises(NotImplementedError, match=r"layout=torch\.jagged"):
        torch.nested.as_nested_tensor([torch.ones(2, 3, device="xla"), torch.zeros(1, 3, device="xla")])
