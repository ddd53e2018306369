"""``xf``: differentiable collectives, and a batch normalization over all replicas."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import collectives
from torch_xla.core._collectives import Groups
from torch_xla.core._collectives import all_gather as _all_gather
from torch_xla.core._collectives import all_reduce as _all_reduce
from torch_xla.core._collectives import all_to_all as _all_to_all
from torch_xla.core._collectives import ragged_all_to_all as _ragged_all_to_all
from torch_xla.core._collectives import reduce_scatter as _reduce_scatter


class AllReduce(torch.autograd.Function):
    """Differentiable all_reduce for ``sum``, ``min`` and ``max``."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, reduce_type: str, scale: float, groups: Groups) -> torch.Tensor:
        if reduce_type not in ("sum", "min", "max"):
            raise ValueError(f"all_reduce: {reduce_type!r} is not differentiable; use sum, min or max")
        ctx.reduce_type, ctx.scale, ctx.groups = reduce_type, scale, groups
        output = _all_reduce(reduce_type, input, 1.0, groups)
        if reduce_type != "sum":
            ctx.save_for_backward(input, output)
        # With one replica all_reduce ignores the scale; the gradient must, too.
        return output * scale if scale != 1.0 and replicas.world_size() > 1 else output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = _all_reduce("sum", grad_output, ctx.scale, ctx.groups)
        if ctx.reduce_type != "sum":
            # Every element equal to the minimum or maximum receives the gradient.
            input, output = ctx.saved_tensors
            grad = torch.where(input == output, grad, torch.zeros_like(grad))
        return grad, None, None, None


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None) -> torch.Tensor:
    """Reduce over the replica group into a new tensor, times ``scale``; differentiable.

    The gradient of a sum is the sum of the replicas' gradients.

    Args:
      reduce_type: ``sum``, ``min`` or ``max``.
      value: tensor of the same shape and dtype on every replica of the group.
      scale: factor of the result; ignored with one replica.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.

    Raises:
      ValueError: another reduction.
    """
    result: torch.Tensor = AllReduce.apply(value, reduce_type, scale, groups)  # type: ignore[no-untyped-call]
    return result


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over all replicas; its gradient is the sum of the replicas' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _all_reduce("sum", x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return _all_reduce("sum", grad_output)


class AllGather(torch.autograd.Function):
    """Differentiable all_gather: backward returns this replica's slice of the gradient of its loss."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int, groups: Groups = None) -> torch.Tensor:
        ctx.dim, ctx.groups = collectives.checked_dim("all_gather", input, dim), groups
        return _all_gather(input, dim, groups)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        size = grad_output.shape[ctx.dim] // collectives.group_size(ctx.groups)
        ordinal = replicas.global_ordinal()
        position = next((group.index(ordinal) for group in ctx.groups or () if ordinal in group), ordinal)
        return grad_output.narrow(ctx.dim, position * size, size).clone(), None, None


class _AllGatherOfSum(AllGather):
    """all_gather for a loss that is the sum of all replicas' losses: backward is a reduce-scatter."""

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        size = collectives.group_size(ctx.groups)
        part = _reduce_scatter("sum", grad_output, 1.0, ctx.dim, size, ctx.groups)
        assert isinstance(part, torch.Tensor)
        return part, None, None


def all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """Concatenate the group's values along ``dim``; differentiable.

    The backward pass returns this replica's slice of the gradient of this replica's loss, as in upstream. Libraries
    rely on this, because they average gradients over replicas afterwards. (The differentiable all_gather of
    ``torch.distributed`` sums the gradients of all replicas.)

    Args:
      value: tensor of the same shape and dtype on every replica of the group.
      dim: dimension along which the values are concatenated.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
    """
    result: torch.Tensor = AllGather.apply(value, dim, groups)  # type: ignore[no-untyped-call]
    return result


class AllToAll(torch.autograd.Function):
    """Differentiable all_to_all over all replicas."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, split: int, concat: int) -> torch.Tensor:
        ctx.dims = split, concat
        return _all_to_all(input, split, concat, replicas.world_size())

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        split, concat = ctx.dims
        return _all_to_all(grad_output, concat, split, replicas.world_size()), None, None


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """Compute ``W @ x``, with ``W`` sharded by rows over the replicas and a separate ``x`` per replica; differentiable.

    Args:
      w: [rows of this replica, K], the same shape on every replica.
      x: [K, columns], the same shape on every replica.
      split: number of blocks of columns that are computed one after another, which bounds the memory of the gathered
        columns.

    Returns:
      [rows of all replicas, columns].

    Raises:
      ValueError: ``split`` does not divide the columns.
    """
    if x.shape[1] % split:
        raise ValueError(f"distributed_mm: split={split} does not divide the {x.shape[1]} columns of x{list(x.shape)}")
    parts = [_distributed_mm(w, piece) for piece in x.chunk(split, dim=1)]
    return parts[0] if split == 1 else torch.cat(parts, dim=1)


def _distributed_mm(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gathered = _AllGatherOfSum.apply(x, 1)  # type: ignore[no-untyped-call]
    result: torch.Tensor = AllToAll.apply(w @ gathered, 1, 0)  # type: ignore[no-untyped-call]
    return result


class SyncBatchNorm(torch.nn.Module):
    """Batch normalization over the combined batch of all replicas.

    Input and output are [N, C, ...], where C is ``num_features``. Eval mode uses the running statistics.

    Args:
      num_features, eps, momentum: see torch.nn.BatchNorm2d.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.dim() < 2 or batch.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: expected [N, {self.num_features}, ...], got {list(batch.shape)}")
        shape = [1, self.num_features] + [1] * (batch.dim() - 2)
        mean, var = self._statistics(batch, shape) if self.training else (self.running_mean, self.running_var)
        normal = (batch - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _statistics(self, batch: torch.Tensor, shape: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        others = [dim for dim in range(batch.dim()) if dim != 1]
        count = batch.numel() // self.num_features * replicas.world_size()
        mean = all_reduce("sum", batch.sum(others)) / count
        # Centered on the mean: sums of squares lose the variance of values far from zero.
        var = all_reduce("sum", (batch - mean.view(shape)).square().sum(others)) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (count / max(1, count - 1)), self.momentum)
        return mean, var

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class _RaggedAllToAll(torch.autograd.Function):
    """Differentiable ragged_all_to_all: the gradients of received rows go back to where the rows came from."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, output: torch.Tensor, input_offsets: torch.Tensor,
                send_sizes: torch.Tensor, output_offsets: torch.Tensor, recv_sizes: torch.Tensor,
                groups: Groups) -> torch.Tensor:  # fmt: skip
        ctx.groups, ctx.rows = groups, value.shape[0]
        ctx.save_for_backward(input_offsets, send_sizes, output_offsets, recv_sizes)
        return _ragged_all_to_all(value, output, input_offsets, send_sizes, output_offsets, recv_sizes, groups)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        input_offsets, send_sizes, output_offsets, recv_sizes = ctx.saved_tensors
        # Where this replica's slices begin on the others: the offsets that the others have passed for it.
        starts, targets = (_exchange_numbers(offsets, ctx.groups) for offsets in (output_offsets, input_offsets))
        zeros = grad.new_zeros(ctx.rows, *grad.shape[1:])
        to_value = _ragged_all_to_all(grad, zeros, starts, recv_sizes, targets, send_sizes, ctx.groups)
        rows = torch.arange(grad.shape[0], device=grad.device).unsqueeze(1)
        is_received = ((rows >= starts) & (rows < starts + recv_sizes)).any(1)
        to_output = grad.masked_fill(is_received.view(-1, *[1] * (grad.dim() - 1)), 0)
        return to_value, to_output, None, None, None, None, None


def _exchange_numbers(numbers: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Send number i to replica i of the group, and return the numbers that they send to this one."""
    return numbers if numbers.shape[0] == 1 else _all_to_all(numbers, 0, 0, numbers.shape[0], groups)


def ragged_all_to_all(
    value: torch.Tensor,
    output: torch.Tensor,
    input_offsets: torch.Tensor,
    send_sizes: torch.Tensor,
    output_offsets: torch.Tensor,
    recv_sizes: torch.Tensor,
    groups: Groups = None,
) -> torch.Tensor:
    """Exchange slices of rows, as [torch_xla.core.xla_model.ragged_all_to_all][]; differentiable.

    Args:
      value: rows to send, [rows, ...]. Slices must not overlap: a row that goes to two replicas gets one gradient.
      output: [rows to receive, ...], of the dtype of ``value``.
      input_offsets, send_sizes, output_offsets, recv_sizes: integers [group size].
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
    """
    result: torch.Tensor = _RaggedAllToAll.apply(  # type: ignore[no-untyped-call]
        value, output, input_offsets, send_sizes, output_offsets, recv_sizes, groups
    )
    return result
