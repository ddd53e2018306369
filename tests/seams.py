"""Random programs that cross the seams: what the CPU computes, refuses or allows, xla does too, step by step.

A program is a list of steps on a pool of tensors. Each step is done on the CPU first: what it gives has to be given on
xla (shape, dtype, whether it needs a gradient), what it refuses has to be refused there, with an exception
of the same type, and in the end all tensors are compared. Steps bring lazy conjugates and negatives, ``out=`` of all
kinds, empty and 0-dimensional shapes, every dtype and its conversions, expanded and strided operands, modes, deep
copies, transforms and gradients.

    python -m tests.seams FIRST COUNT      programs by number, each from a seed of its own; prints what differs
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import pickle
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torch_xla

POOL = 6
#: Operands are numbers below OPERANDS, of which those from ANY on are the tensor that was made last.
ANY, OPERANDS = 12, 20

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *COMPLEX, *INTS, torch.bool)
SHAPES = ((2, 3), (3,), (), (0,), (0, 3), (2, 0), (1, 3), (2, 1), (4, 4), (2, 2, 2), (1,), (6,))

#: (step, part of what the CPU said): why xla may compute it, or refuse it in other words. "*" stands for all steps.
ALLOWED: dict[tuple[str, str], str] = {
    ("*", "not implemented for"): "the CPU has no kernel for a dtype that XLA has",
    ("*", "is not supported for complex"): "the same, in other words",
    ("*", "on CPU does not support"): "the same, in other words",
    ("*", "out of bounds for dimension"): "indices are not looked at when an operation is recorded",
    ("cat out", "input types can't be cast to the desired output type"): "one of two faults: sizes are checked first",
    ("*", "view size is not compatible with input tensor's size and stride"): (
        "how the results of operators lie is not said on xla: what they allow on the CPU has to be allowed"
    ),
    ("view as complex", "Tensor must have a "): "the same",
    ("masked_scatter_", "Number of elements of source < number of ones in mask"): "values are not looked at either",
    ("abs out", "Found dtype"): "the CPU's kernel does not convert to a wider `out`",
    ("index select out", "self and result must have the same scalar type"): "one of two faults",
    ("index_fill_", "setStorage: sizes"): "a fault of the CPU's kernel: nothing is filled",
    ("view dtype", "self.stride(-1) must be 1 to view"): "how results lie is not said on xla",
    ("view as real", "view_as_real doesn't work on unresolved"): "no tensor of xla is conjugated lazily",
    ("index select", "index out of range in self"): "indices are not looked at when an operation is recorded",
    ("index_add_", "index out of range in self"): "the same",
    ("take", "out of range: tried to access index"): "the same",
    ("*", "unsupported operation: more than one element of the written-to tensor refers to a single memory"): (
        "refused for expanded tensors; allowed where all elements are set to one value"
    ),
}


def values(shape: tuple[int, ...], dtype: torch.dtype, k: int) -> Tensor:
    """Small numbers, some of them negative, and for even ``k`` what is special of the dtype."""
    count = 1
    for size in shape:
        count *= size
    numbers = (torch.arange(count, dtype=torch.float64) * 3 + k) % 7 - 3
    if dtype in COMPLEX:
        return torch.complex(numbers, numbers.flip(0) + 1).to(dtype).reshape(shape)
    found = (numbers.abs() if dtype is torch.uint8 else numbers).to(dtype).reshape(shape)
    if k % 4 == 0 and dtype in FLOATS and count > 1:
        found.view(-1)[k % count] = (float("nan"), float("inf"), -0.0, float("-inf"))[k // 4 % 4]
    return found


Step = Callable[["Machine", Tensor, Tensor, int], Any]


def _dim(x: Tensor, k: int) -> int:
    return k % (x.dim() + 1) - (k % 2) * x.dim()  # now and then out of range


VIEWS: dict[str, Step] = {
    "conj": lambda m, x, y, k: x.conj(),
    "neg view": lambda m, x, y, k: torch._neg_view(x),
    "real": lambda m, x, y, k: x.real,
    "imag": lambda m, x, y, k: x.imag,
    "view as real": lambda m, x, y, k: torch.view_as_real(x),
    "view as complex": lambda m, x, y, k: torch.view_as_complex(x),
    "mH": lambda m, x, y, k: x.mH,
    "H": lambda m, x, y, k: x.H,
    "t": lambda m, x, y, k: x.t(),
    "transpose": lambda m, x, y, k: x.transpose(0, _dim(x, k)),
    "select": lambda m, x, y, k: x.select(_dim(x, k), k // 4 % 4),
    "narrow": lambda m, x, y, k: x.narrow(_dim(x, k), k // 3 % 3, k // 9 % 4),
    "strided slice": lambda m, x, y, k: x[..., ::2],
    "expand": lambda m, x, y, k: x.expand(2, *x.shape),
    "expand a one": lambda m, x, y, k: x.expand(2, -1) if x.dim() < 3 else x.expand(2, 2, 2),
    "squeeze": lambda m, x, y, k: x.squeeze(),
    "unsqueeze": lambda m, x, y, k: x.unsqueeze(_dim(x, k)),
    "flat": lambda m, x, y, k: x.view(-1),
    "reshape": lambda m, x, y, k: x.reshape(SHAPES[k % len(SHAPES)]),
    "view dtype": lambda m, x, y, k: None if m.infers() or x.is_inference() else x.view(DTYPES[k % len(DTYPES)]),
    "as strided": lambda m, x, y, k: m.laid_out(x).as_strided((2, 2), (1, k % 3), k % 2),
    "unfold": lambda m, x, y, k: x.unfold(0, 2, 1 + k % 2),
    "diagonal": lambda m, x, y, k: x.diagonal(k % 3 - 1),
    "detach": lambda m, x, y, k: x.detach(),
    "data": lambda m, x, y, k: x.data,
    "resolve conj": lambda m, x, y, k: x.resolve_conj(),
    "resolve neg": lambda m, x, y, k: x.resolve_neg(),
    "chunk": lambda m, x, y, k: x.chunk(2, -1)[k % len(x.chunk(2, -1))],
    "movedim": lambda m, x, y, k: x.movedim(0, -1),
    "contiguous": lambda m, x, y, k: x.contiguous().clone(),
    "broadcast": lambda m, x, y, k: torch.broadcast_tensors(x, y)[k % 2],
}

WRITES: dict[str, Step] = {
    "add_": lambda m, x, y, k: x.add_(y),
    "sub_ number": lambda m, x, y, k: x.sub_(k),
    "mul_ half": lambda m, x, y, k: x.mul_(0.5),
    "mul_ complex": lambda m, x, y, k: x.mul_(1 + 2j),
    "div_": lambda m, x, y, k: x.div_(k + 1),
    "floor divide_": lambda m, x, y, k: x.floor_divide_(2),
    "pow_": lambda m, x, y, k: x.pow_(2),
    "copy_": lambda m, x, y, k: x.copy_(y if y.dtype == x.dtype else y.clone()),  # of the parts of x, in no order
    "fill_": lambda m, x, y, k: x.fill_(k * 70),
    "fill_ complex": lambda m, x, y, k: x.fill_(1 - 2j),
    "zero_": lambda m, x, y, k: x.zero_(),
    "neg_": lambda m, x, y, k: x.neg_(),
    "conj_": lambda m, x, y, k: x.conj_physical_(),
    "set item": lambda m, x, y, k: x.__setitem__(k % 3, y.clone()),
    "set number": lambda m, x, y, k: x.__setitem__((..., k % 2), -k),
    "set masked": lambda m, x, y, k: x.__setitem__(x == y, k),
    "set by list": lambda m, x, y, k: x.__setitem__([k % 2, 0], y.clone()),
    "set by index": lambda m, x, y, k: x.__setitem__(m.index([k % 3, 0]), y.clone()),
    "masked_fill_": lambda m, x, y, k: x.masked_fill_(x == x, k),
    "masked_scatter_": lambda m, x, y, k: x.masked_scatter_(x == x, y.clone()),
    "index_add_": lambda m, x, y, k: x.index_add_(0, m.index([0, k % 3]), y.clone()),
    "index_copy_": lambda m, x, y, k: x.index_copy_(0, m.index([k % 2]), y.clone()),
    "index_fill_": lambda m, x, y, k: x.index_fill_(0, m.index([k % 2]), k),
    "scatter_": lambda m, x, y, k: x.scatter_(0, m.index([k % 2]), y.clone()),
    "index_put_": lambda m, x, y, k: x.index_put_((m.index([0, 0]),), y.clone(), accumulate=True),
    "clamp_": lambda m, x, y, k: x.clamp_(-2, k),
    "sigmoid_": lambda m, x, y, k: x.sigmoid_(),
    "resize_": lambda m, x, y, k: m.resized(x, SHAPES[k % len(SHAPES)]),
    "transpose_": lambda m, x, y, k: x.transpose_(0, -1),
    "squeeze_": lambda m, x, y, k: x.squeeze_(),
    "set data": lambda m, x, y, k: setattr(x, "data", y),
    "lerp_": lambda m, x, y, k: x.lerp_(y.clone(), 0.5),  # the CPU reads what it has written where they overlap
    "addcmul_": lambda m, x, y, k: x.addcmul_(y, y, value=k),
    "bitwise_and_": lambda m, x, y, k: x.bitwise_and_(k),
    "logical_not_": lambda m, x, y, k: x.logical_not_(),
    "swap": lambda m, x, y, k: x.copy_(x.flip(0)),
    "iadd": lambda m, x, y, k: x.__iadd__(y),
    "cumsum_": lambda m, x, y, k: x.cumsum_(0),
}

OUTS: dict[str, Step] = {
    "add out": lambda m, x, y, k: torch.add(x, y, out=m.one(k)),
    "add out of itself": lambda m, x, y, k: torch.add(x, y, out=x),
    "mul out other dtype": lambda m, x, y, k: torch.mul(x, y, out=m.new(SHAPES[k % 4], DTYPES[k % len(DTYPES)])),
    "neg out": lambda m, x, y, k: torch.neg(x, out=m.one(k)),
    "sum out": lambda m, x, y, k: torch.sum(x, 0, out=m.other(k)),
    "cat out": lambda m, x, y, k: torch.cat([x, y], out=m.other(k)),
    "mm out": lambda m, x, y, k: torch.mm(x, y, out=m.other(k)),
    "max out": lambda m, x, y, k: torch.max(x, 0, out=(m.other(k), m.new((), torch.int64)))[0],
    "abs out": lambda m, x, y, k: torch.abs(x, out=m.one(k)),
    "eq out": lambda m, x, y, k: torch.eq(x, y, out=m.one(k)),
    "where out": lambda m, x, y, k: torch.where(x == x, x, y, out=m.one(k)),
    "index select out": lambda m, x, y, k: torch.index_select(x, 0, m.index([0]), out=m.other(k)),
}

MAKES: dict[str, Step] = {
    "new": lambda m, x, y, k: m.new(SHAPES[k % len(SHAPES)], DTYPES[(k * 5) % len(DTYPES)], k),
    "new of y's shape": lambda m, x, y, k: m.new(tuple(y.shape), DTYPES[(k * 7) % len(DTYPES)], k),
    "zeros": lambda m, x, y, k: torch.zeros(SHAPES[k % len(SHAPES)], device=m.device),
    "full": lambda m, x, y, k: torch.full((2, 2), k * 70, dtype=DTYPES[k % len(DTYPES)], device=m.device),
    "full by number": lambda m, x, y, k: torch.full((2,), (k, 0.5, True, 1j)[k % 4], device=m.device),
    "arange": lambda m, x, y, k: torch.arange(k % 5, dtype=DTYPES[k % len(DTYPES)], device=m.device),
    "linspace": lambda m, x, y, k: torch.linspace(0, 1, k % 4, device=m.device),
    "tensor": lambda m, x, y, k: torch.tensor([k, (1, 0.5, True)[k % 3]], device=m.device),
    "ones like": lambda m, x, y, k: torch.ones_like(x, dtype=DTYPES[k % len(DTYPES)]),
    "to": lambda m, x, y, k: m.finite(x).to(DTYPES[k % len(DTYPES)]),
    "clone": lambda m, x, y, k: x.clone(),
    "add": lambda m, x, y, k: x + y,
    "sub": lambda m, x, y, k: x - y,
    "mul": lambda m, x, y, k: x * y,
    "divide": lambda m, x, y, k: x / y,
    "floor divide": lambda m, x, y, k: x // 2,
    "remainder": lambda m, x, y, k: x % 3,
    "pow": lambda m, x, y, k: x**2,
    "pow negative": lambda m, x, y, k: x**-1,
    "number first": lambda m, x, y, k: k - x,
    "half": lambda m, x, y, k: x * 0.5,
    "times j": lambda m, x, y, k: x * 1j,
    "compare": lambda m, x, y, k: x < y,
    "equal": lambda m, x, y, k: x == y,
    "and": lambda m, x, y, k: x & y,
    "not": lambda m, x, y, k: ~x,
    "shift": lambda m, x, y, k: x << 1,
    "where": lambda m, x, y, k: torch.where(x == x, x, y),
    "maximum": lambda m, x, y, k: torch.maximum(x, y),
    "sum": lambda m, x, y, k: x.sum(),
    "sum dim": lambda m, x, y, k: x.sum(_dim(x, k)),
    "mean": lambda m, x, y, k: x.mean(_dim(x, k)),
    "max": lambda m, x, y, k: x.max(),
    "max dim": lambda m, x, y, k: x.max(_dim(x, k)).values,
    "argmin": lambda m, x, y, k: x.argmin(_dim(x, k)),
    "all": lambda m, x, y, k: x.all(_dim(x, k)),
    "prod": lambda m, x, y, k: x.prod(_dim(x, k)),
    "cumsum": lambda m, x, y, k: x.cumsum(_dim(x, k)),
    "var": lambda m, x, y, k: x.var(_dim(x, k)),
    "norm": lambda m, x, y, k: torch.linalg.vector_norm(x),
    "sort": lambda m, x, y, k: x.sort(_dim(x, k), stable=True).values,
    "topk": lambda m, x, y, k: x.topk(k % 3, _dim(x, k)).values,
    "unique": lambda m, x, y, k: x.unique(),
    "nonzero": lambda m, x, y, k: x.nonzero(),
    "cat": lambda m, x, y, k: torch.cat([x, y], _dim(x, k)),
    "stack": lambda m, x, y, k: torch.stack([x, y]),
    "mm": lambda m, x, y, k: x @ y,
    "matmul": lambda m, x, y, k: torch.matmul(x, y.mT),
    "outer": lambda m, x, y, k: torch.outer(x, y),
    "item index": lambda m, x, y, k: x[k % 3],
    "mask index": lambda m, x, y, k: x[x == x],
    "list index": lambda m, x, y, k: x[[k % 3, 0]],
    "tensor index": lambda m, x, y, k: x[m.index([k % 3, -1])],
    "bool index": lambda m, x, y, k: x[k % 2 == 0],
    "gather": lambda m, x, y, k: x.gather(0, m.index([k % 2])),
    "index select": lambda m, x, y, k: x.index_select(0, m.index([k % 2])),
    "take": lambda m, x, y, k: x.take(m.index([0, k % 7])),
    "flip": lambda m, x, y, k: x.flip(0),
    "roll": lambda m, x, y, k: x.roll(1, 0),
    "repeat": lambda m, x, y, k: x.repeat(2, 1),
    "tril": lambda m, x, y, k: x.tril(),
    "softmax": lambda m, x, y, k: x.softmax(_dim(x, k)),
    "relu": lambda m, x, y, k: x.relu(),
    "gelu": lambda m, x, y, k: torch.nn.functional.gelu(x),
    "abs": lambda m, x, y, k: x.abs(),
    "angle": lambda m, x, y, k: x.angle(),
    "sign": lambda m, x, y, k: x.sgn(),
    "sqrt": lambda m, x, y, k: x.sqrt(),
    "exp": lambda m, x, y, k: (x.sgn() if x.is_complex() else x).exp(),  # the CPU has two ways to overflow
    "floor": lambda m, x, y, k: x.floor(),
    "isnan": lambda m, x, y, k: x.isnan(),
    "one hot": lambda m, x, y, k: torch.nn.functional.one_hot(x, 8),
    "cross entropy": lambda m, x, y, k: torch.nn.functional.cross_entropy(x, y),
    "layer norm": lambda m, x, y, k: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "pad": lambda m, x, y, k: torch.nn.functional.pad(x, (1, k % 3 - 1)),
    "bincount": lambda m, x, y, k: x.bincount(),
    "searchsorted": lambda m, x, y, k: torch.searchsorted(x, y),
    "complex": lambda m, x, y, k: torch.complex(x, y),
    "deepcopy": lambda m, x, y, k: copy.deepcopy(x),
    "pickle": lambda m, x, y, k: pickle.loads(pickle.dumps(x)),
    "save": lambda m, x, y, k: m.saved(x),
    "vmap": lambda m, x, y, k: torch.func.vmap(lambda row: row * 2 + row.sum())(x),
    "vmap write": lambda m, x, y, k: torch.func.vmap(lambda row: row.clone().add_(1))(x),
    "func grad": lambda m, x, y, k: torch.func.grad(lambda v: (v * v).sum())(x),
    "jvp": lambda m, x, y, k: torch.func.jvp(lambda v: v * 3, (x,), (x,))[1],
    "gradient": lambda m, x, y, k: m.gradient(x, y),
    "double gradient": lambda m, x, y, k: m.gradient(x.clone(), x),
    "autocast mm": lambda m, x, y, k: m.autocast(lambda: x @ y),
    "autocast add": lambda m, x, y, k: m.autocast(lambda: x.sum() + y),
}

ASKS: dict[str, Step] = {
    "item": lambda m, x, y, k: x.item(),
    "list": lambda m, x, y, k: repr(x.tolist()) if x.dtype in (*INTS, torch.bool) else None,
    "bool": lambda m, x, y, k: bool(x),
    "len": lambda m, x, y, k: len(x),
    "same": lambda m, x, y, k: torch.equal(x, x),
    "int": lambda m, x, y, k: int(x),
    "promoted": lambda m, x, y, k: str(torch.result_type(x, y)),
    "can broadcast": lambda m, x, y, k: tuple(torch.broadcast_shapes(x.shape, y.shape)),
    "iterate": lambda m, x, y, k: [tuple(row.shape) for row in x],
    "contiguous?": lambda m, x, y, k: x.is_contiguous() if x.dim() < 2 else None,
    "requires grad": lambda m, x, y, k: x.requires_grad_(),
    "sync": lambda m, x, y, k: torch_xla.sync() if m.device == "xla" else None,
    "drop": lambda m, x, y, k: m.drop(k),
}

STEPS: dict[str, Step] = {**VIEWS, **WRITES, **OUTS, **MAKES, **ASKS}
#: What a step is done within; most are done within nothing.
MODES: tuple[Callable[[], Any], ...] = (
    *[contextlib.nullcontext] * 8, torch.no_grad, torch.inference_mode, torch.enable_grad,
    lambda: default_dtype(torch.float64), lambda: default_dtype(torch.bfloat16),
)  # fmt: skip


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Machine:
    """One pool of tensors on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.pool = [self.new((2, 3), torch.float32, 1), self.new((2, 2), torch.complex64, 2)]

    def new(self, shape: tuple[int, ...], dtype: torch.dtype, k: int = 1) -> Tensor:
        with default_dtype(torch.float32):
            return values(shape, dtype, k).clone().to(self.device)  # no view

    def index(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def any(self, k: int) -> Tensor:
        """Any tensor; the one that was made last, most often (a view is to be written to, to be viewed again)."""
        return self.pool[k % len(self.pool) if k < ANY else -1]

    def one(self, k: int) -> Tensor:
        return self.pool[k % len(self.pool)]

    def finite(self, x: Tensor) -> Tensor:
        """What is not finite, or large, is no integer that C++ defines."""
        return x.nan_to_num(0, 0, 0).clamp(0, 100) if x.is_floating_point() else x

    def infers(self) -> bool:
        """On the CPU a view as another dtype that inference mode makes is an inference tensor; other views are not."""
        return torch.is_inference_mode_enabled()

    def other(self, k: int) -> Tensor:
        """Memory of its own: what an operator that reads twice gives into its operand's memory is not defined."""
        return self.new(SHAPES[k % len(SHAPES)], DTYPES[k % len(DTYPES)])

    def laid_out(self, x: Tensor) -> Tensor:
        """Contiguous on both devices: how the results of operators lie is not said on xla."""
        return x if x._is_view() else x.contiguous()

    def resized(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Not to grow: what it is filled with then is not defined."""
        return x.resize_(shape) if torch.Size(shape).numel() <= x.numel() else x

    def drop(self, k: int) -> None:
        if len(self.pool) > 2:
            del self.pool[k % len(self.pool)]

    def saved(self, x: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        return torch.load(file)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        (leaf * y * leaf).abs().sum().backward()
        return leaf.grad

    def autocast(self, call: Callable[[], Tensor]) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return call()

    def step(self, program_step: tuple[str, int, int, int, int]) -> Any:
        """Does one step; what it returns must be equal on all devices. Raises what the step raises."""
        name, mode, i, j, k = program_step
        x, y = self.any(i), self.any(j)
        with MODES[mode % len(MODES)]():
            made = STEPS[name](self, x, y, k)
        if not isinstance(made, Tensor):
            return made
        if len(self.pool) == POOL:
            del self.pool[j % POOL]
        self.pool.append(made)
        return described(made)


def described(x: Tensor) -> tuple[Any, ...]:
    try:
        leaf = x.is_leaf
    except RuntimeError:  # an assertion of autograd's, about views written to in ways that it does not follow
        leaf = None
    return tuple(x.shape), x.dtype, x.requires_grad, x.is_inference(), leaf


#: How far results may be apart: sums in another order.
CLOSE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.complex64: 1e-4}
DOUBLE = 1e-9


class Roundings:
    """How far what is in each memory of the CPU may be from xla's: what was rounded once keeps that in a wide dtype."""

    def __init__(self, cpu: Machine) -> None:
        self._cpu, self._of = cpu, dict[int, float]()

    def of(self, x: Tensor) -> float:
        return max(self._of.get(x.untyped_storage().data_ptr(), DOUBLE), CLOSE.get(x.dtype, DOUBLE))

    def step_done(self, operands: list[Tensor]) -> None:
        """Any of them may have been written to, and what was made last may be of all of them."""
        touched = [*operands, self._cpu.pool[-1]]
        worst = max(map(self.of, touched))
        self._of |= {x.untyped_storage().data_ptr(): worst for x in touched}


def overlaps(x: Tensor) -> bool:
    """Whether elements of a tensor of the CPU share their place."""
    if x.numel() < 2:
        return False
    places = sum(torch.arange(n).mul(step).reshape([-1] + [1] * (x.dim() - 1 - d))
                 for d, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)))  # fmt: skip
    return len(torch.as_tensor(places).unique()) < x.numel()


def readable(x: Tensor) -> bool:
    """Whether autograd lets a tensor be read: not so a view of inference mode whose base was written to outside."""
    try:
        x.clone()
    except RuntimeError:
        return False
    return True


def equal(got: Tensor, expected: Tensor, close: float) -> bool:
    got, expected = (t.detach().resolve_conj().resolve_neg() for t in (got, expected))
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(got, expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    return torch.allclose(got.to(wide), expected.to(wide), rtol=close, atol=close, equal_nan=True)


@dataclass
class Difference(Exception):
    """Where xla does otherwise than the CPU, and how."""

    number: int
    step: tuple[Any, ...]
    what: str

    def __str__(self) -> str:
        return f"step {self.number} {self.step}: {self.what}"


Program = list[tuple[str, int, int, int, int]]


def missing(refused: Exception | None) -> bool:
    """Whether xla says in one sentence that it does not have this."""
    said = "" if refused is None else str(refused)
    return any(
        part in said for part in ("is not there on xla", "XLA has no complex numbers of two", "incompatible tensor")
    )


def allowed(name: str, said: str) -> bool:
    return any(step in ("*", name) and part in said for step, part in ALLOWED)


def run(program: Program) -> None:
    """Raises Difference where xla does otherwise. A step that may differ ends the program."""
    cpu, xla = Machine("cpu"), Machine("xla")
    roundings = Roundings(cpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, step in enumerate(program):
            written = [cpu.any(step[2]), cpu.one(step[4])]
            operands = [*written, cpu.any(step[3])]
            shared = any(map(overlaps, written))
            shapes = [x.shape for x in cpu.pool]
            expected, refusal = _done(cpu, step)
            got, refused = _done(xla, step)
            if missing(refused):
                return
            if refusal is not None and allowed(step[0], str(refusal)):
                if refused is None:
                    return
                continue
            if refusal is None and step[0] in (*WRITES, *OUTS) and (shared or any(map(overlaps, written))):
                return  # what is written to one place twice is not defined, nor what a memory grows by
            _compare(number, step, (expected, refusal), (got, refused))
            roundings.step_done(operands)
            if step[0] in OUTS and any(x.shape != shape for x, shape in zip(cpu.pool, shapes, strict=False)):
                return  # the memory of an `out` that was resized is no longer that of its views, or still is
            if any(a.shape != b.shape for a, b in zip(xla.pool, cpu.pool, strict=True)):
                if refusal is not None:
                    return  # an `out` that the CPU has resized before it saw that it does not fit
                raise Difference(number, step, "another tensor has another shape now")
        for number, (mine, theirs) in enumerate(zip(xla.pool, cpu.pool, strict=True)):
            if described(mine) != described(theirs):
                raise Difference(len(program), (number,), f"{described(mine)} on xla, {described(theirs)} on the CPU")
            if not readable(theirs):
                continue
            if not equal(mine.cpu(), theirs, roundings.of(theirs)):
                raise Difference(len(program), (number,), f"values: {mine.cpu()} on xla, {theirs} on the CPU")


def _done(machine: Machine, step: tuple[str, int, int, int, int]) -> tuple[Any, Exception | None]:
    try:
        return machine.step(step), None
    except Exception as error:
        return None, error


def _compare(number: int, step: Any, cpu: tuple[Any, Exception | None], xla: tuple[Any, Exception | None]) -> None:
    def said(outcome: tuple[Any, Exception | None]) -> str:
        error = outcome[1]
        return repr(outcome[0]) if error is None else f"{type(error).__name__}: {str(error)[:300]}"

    same = type(cpu[1]) is type(xla[1]) and (_same(cpu[0], xla[0]) if cpu[1] is None else True)
    if not same:
        raise Difference(number, step, f"\n  CPU: {said(cpu)}\n  xla: {said(xla)}")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
        return equal(torch.tensor(b), torch.tensor(a), 1e-4)
    return bool(a == b)


def program(seed: int, length: int = 6) -> Program:
    """The program of a number."""
    draw = random.Random(seed)
    kinds = (VIEWS, VIEWS, WRITES, WRITES, OUTS, MAKES, MAKES, MAKES, ASKS)
    return [
        (
            draw.choice(list(draw.choice(kinds))),
            draw.randrange(len(MODES)),
            draw.randrange(OPERANDS),
            draw.randrange(OPERANDS),
            draw.randrange(48),
        )
        for _ in range(length)
    ]


def shortened(failing: Program) -> Program:
    """Without the steps that the difference does not need."""
    at = 0
    while at < len(failing):
        less = failing[:at] + failing[at + 1 :]
        try:
            run(less)
            at += 1
        except Difference:
            failing = less
    return failing


def main() -> None:
    """The command."""
    first, count = map(int, sys.argv[1:3])
    logging.getLogger("torch_xla").setLevel(logging.ERROR)
    seen: dict[str, int] = {}
    for number in range(first, first + count):
        try:
            run(program(number))
        except Difference as difference:
            key = f"{difference.step[0]}|{difference.what[:60]}"
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 1:
                short = shortened(program(number))
                try:
                    run(short)
                except Difference as less:
                    print(f"--- {number}: {short}\n{less}", flush=True)


if __name__ == "__main__":
    main()
