"""A pool of tensors on one device, and what a step does to it."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.fuzz.cross_feature.steps import STEPS
from tests.fuzz.cross_feature.values import DTYPES, INTS, SHAPES, default_dtype, values

POOL = 6
#: Operands are numbers below OPERANDS, of which those from ANY on are the tensor that was made last.
ANY, OPERANDS = 12, 20


@contextlib.contextmanager
def _threads() -> Any:
    """Within it a step is done by another thread."""
    yield _in_a_thread


def _in_a_thread(call: Callable[[], Any]) -> Any:
    made: list[Any] = []

    def run() -> None:
        try:
            made.append(call())
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


#: What a step is done within; most are done within nothing.
MODES: tuple[Callable[[], Any], ...] = (
    *[contextlib.nullcontext] * 8, torch.no_grad, torch.inference_mode, torch.enable_grad,
    lambda: default_dtype(torch.float64), lambda: default_dtype(torch.bfloat16),
    _threads,
)  # fmt: skip


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
        """Separate memory: what an operator that reads twice gives into its operand's memory is not defined."""
        return self.new(SHAPES[k % len(SHAPES)], DTYPES[k % len(DTYPES)])

    def laid_out(self, x: Tensor) -> Tensor:
        """Make x contiguous on both devices: strides of operator results are unspecified on xla."""
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

    def hooked(self, x: Tensor, y: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        middle = leaf * y
        middle.register_hook(lambda grad: grad * 2)
        leaf.register_post_accumulate_grad_hook(lambda t: t.grad.add_(1))
        middle.abs().sum().backward()
        return leaf.grad

    def checkpointed(self, x: Tensor, y: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        checkpoint(lambda v: (v * y).abs(), leaf, use_reentrant=False).sum().backward()
        return leaf.grad

    def foreach(self, x: Tensor, k: int) -> None:
        torch._foreach_add_([x, x], k)

    def foreach_pair(self, x: Tensor, y: Tensor) -> None:
        torch._foreach_add_([x, y], [y, x])

    def foreach_numbers(self, x: Tensor, y: Tensor, k: int) -> None:
        torch._foreach_mul_([x, y], [k, 2])

    def hook(self, x: Tensor) -> None:
        x.register_hook(lambda grad: grad * 2)

    def digits(self, x: Tensor) -> str | None:
        if x.dtype not in (*INTS, torch.bool):
            return None
        return repr(x).replace(f", device='{x.device}'", "")

    def made(self, call: Callable[[], Tensor]) -> Tensor:
        with torch.device(self.device):
            return call()

    def autocast(self, call: Callable[[], Tensor]) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return call()

    def step(self, program_step: tuple[str, int, int, int, int]) -> Any:
        """Does one step; what it returns must be equal on all devices. Raises what the step raises."""
        name, mode, i, j, k = program_step
        x, y = self.any(i), self.any(j)
        with MODES[mode % len(MODES)]() as runner:
            call = lambda: STEPS[name](self, x, y, k)
            made = runner(call) if runner is _in_a_thread else call()
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
