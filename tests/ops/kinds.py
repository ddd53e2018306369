"""Defines the kinds of calls of an operator; each turns a sample into a function of the device.

forward         op(*args)
noncontiguous   the same with noncontiguous tensors
out             op(*args, out=...): the returned tensor, the written tensor, and whether they are the same object
inplace         op_(*args): the same
grad            gradients of a weighted sum of the results
errors          inputs for which the op must raise
wrong out, overlap, empty   see invalid_inputs.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from tests.ops import database, invalid_inputs

KINDS = ("forward", "grad", "noncontiguous", "out", "inplace", "errors", *invalid_inputs.KINDS)


@dataclass(frozen=True, slots=True)
class Case:
    """One sample of one kind: ``run("xla")`` must equal ``run("cpu")``; ``process`` returns the unambiguous part.

    ``run_in_float64`` runs the sample on the CPU with float64 tensors, and rounds the results to the sample's dtype.
    """

    label: str
    run: Callable[[str], Any]
    run_in_float64: Callable[[], Any]
    process: Callable[[Any], Any]
    sample: Any


def cases(info: Any, dtype: torch.dtype, kind: str, limit: int) -> list[Case]:
    """Return the cases of one op, dtype and kind; none if the op does not support the kind."""
    if kind == "errors":
        return [_case(info, error.sample_input, _forward) for error in database.error_samples(info, limit)]
    if not _has(info, dtype, kind):
        return []
    samples = database.samples(info, dtype, limit, grad=kind == "grad")
    if kind == "noncontiguous":
        return [_case(info, sample.noncontiguous(), _forward) for sample in samples]
    if kind == "inplace":
        samples = [sample for sample in samples if not sample.broadcasts_input]
    return [_case(info, sample, _FORMS[kind]) for sample in samples]


def _has(info: Any, dtype: torch.dtype, kind: str) -> bool:
    if kind == "grad":
        return bool(info.supports_autograd) and dtype in info.supported_backward_dtypes("cpu")
    if kind == "out":
        return bool(info.supports_out)
    return kind != "inplace" or info.get_inplace() is not None


def _case(info: Any, sample: Any, form: Callable[[Any, Any, str], Any]) -> Case:
    return Case(
        sample.summary(),
        lambda device: form(info, sample, device),
        lambda: database.with_dtype(form(info, _in_float64(sample), "cpu"), sample.input.dtype),
        sample.output_process_fn_grad,
        sample,
    )


def _in_float64(sample: Any) -> Any:
    found = copy.copy(sample)
    inputs = sample.input, sample.args, sample.kwargs
    found.input, found.args, found.kwargs = database.with_dtype(inputs, torch.float64)
    return found


def gather_indexed(info: Any, sample: Any, result: Any) -> Any:
    """Return a result of an op of database.TIES with indices replaced by the elements of the input."""
    position, number = database.TIES[info.name]
    indices = result if number is None else result[number]
    base = sample.input.detach()
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)
    if base.ndim == 0:
        found = base.expand(indices.shape) + 0 * indices
    elif indices.ndim < base.ndim:
        found = torch.take_along_dim(base, indices.unsqueeze(dim), dim).squeeze(dim)
    else:
        found = torch.take_along_dim(base, indices, dim)
    return found if number is None else (result[0], found)


def _call(function: Callable[..., Any], sample: Any, device: str, **more: Any) -> Any:
    args = list(database.on(device, (sample.input, *sample.args)))
    if function is torch.tensor_split:
        args[1:] = sample.args  # split indices are on the CPU for every device
    with _default(device, sample):
        return function(*args, **database.on(device, sample.kwargs), **more)


def _default(device: str, sample: Any) -> AbstractContextManager[Any]:
    """Return a scope with the default device for samples that specify no device, such as arange(2)."""
    given = _pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    has_device = "device" in sample.kwargs or any(isinstance(leaf, torch.Tensor) for leaf in given)
    return nullcontext() if has_device else torch.device(device)


def _forward(info: Any, sample: Any, device: str) -> Any:
    return _call(info.get_op(), sample, device)


def _out(info: Any, sample: Any, device: str) -> Any:
    # Initialized, so that elements that the op does not write are compared, too, and on the device.
    outs = _pytree.tree_map(lambda t: torch.ones_like(t, device=device), _call(info.get_op(), sample, "cpu"))
    outs = tuple(outs) if isinstance(outs, (tuple, list)) else outs
    returned = _call(info.get_op(), sample, device, out=outs)
    same = _pytree.tree_leaves(returned), _pytree.tree_leaves(outs)
    return returned, outs, [a is b for a, b in zip(*same, strict=True)]


def _inplace(info: Any, sample: Any, device: str) -> Any:
    target, *args = database.on(device, (sample.input, *sample.args))
    returned = info.get_inplace()(target, *args, **database.on(device, sample.kwargs))
    return returned, target, returned is target


def _grad(info: Any, sample: Any, device: str) -> Any:
    tree = database.on(device, (sample.input, sample.args, sample.kwargs))
    if info.get_op() is torch.tensor_split:
        tree = tree[0], sample.args, tree[2]
    leaves = [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]
    first, args, kwargs = tree
    results = sample.output_process_fn_grad(info.get_op()(first, *args, **kwargs))
    losses = [_weighted(t) for t in _pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    return torch.autograd.grad(sum(losses, torch.zeros((), device=device)), leaves, allow_unused=True)


def _weighted(result: torch.Tensor) -> torch.Tensor:
    # Weighted, because the plain sum of a softmax, for example, has a zero gradient.
    weights = (torch.arange(result.numel()) % 7 / 7 + 0.5).reshape(result.shape).to(result.device)
    real = torch.view_as_real(result).sum(-1) if result.is_complex() else result
    return (real * weights).sum()


_FORMS = {"forward": _forward, "out": _out, "inplace": _inplace, "grad": _grad}
