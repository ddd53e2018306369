"""Reads torch's own operator database: operators, their samples, and which of them are random."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators whose values are random or uninitialized: only structure, shape and dtype are compared.
RANDOM = _names(
    """bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial
    new_empty new_empty_strided nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.rrelu normal pca_lowrank rand_like randint randint_like randn
    randn_like svd_lowrank uniform"""
)

#: Results defined only up to a sign, a phase or a basis: compared after the sample's own `output_process_fn_grad`.
AMBIGUOUS = _names("linalg.eig linalg.eigh linalg.svd linalg.qr qr svd geqrf")

#: Kernels may return the index of any of several equal elements: compare the indexed elements. Op -> (position of
#: its argument dim, number of the result with indices: None if it is the only one).
TIES: dict[str, tuple[int, int | None]] = {
    "topk": (1, 1),
    "kthvalue": (1, 1),
    "sort": (0, 1),
    "argsort": (0, None),
    "mode": (0, 1),
}

#: Operators whose float32 results are compared with float64 on the CPU: the CPU's float32 result is as far from it as
#: xla's, so that they may differ by the sum of both errors. The tolerance then bounds the error of xla alone.
#: Attention: scores near 80 are rounded to 4e-6, which is the relative error of a weight. In a gradient the errors of
#: the CPU (6.6e-6, by its decomposition) and of xla (6.5e-6) have opposite signs.
FLOAT64_REFERENCE = _names("nn.functional.scaled_dot_product_attention")


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@functools.cache
def ops() -> dict[str, Any]:
    """Return every OpInfo by its name, with its variant in parentheses if it has one."""
    # Imported lazily: it takes three seconds, and collecting tests needs only names.
    from torch.testing._internal import common_methods_invocations, common_utils
    from torch.testing._internal.opinfo import core

    # With a fixed seed inside the op, a random op would look deterministic.
    common_methods_invocations.wrapper_set_seed = _unseeded
    # torch searches the whole stack for the unittest method that the samples belong to, for each sample.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    found: dict[str, Any] = {}
    for info in common_methods_invocations.op_db:
        found.setdefault(name_of(info), info)
    return found


def name_of(info: Any) -> str:
    """Return ``add``, or ``div (floor_rounding)`` for a variant."""
    return f"{info.name} ({info.variant_test_name})" if info.variant_test_name else str(info.name)


def seed_all() -> None:
    """Seed all generators, so that every process makes the same samples."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  torch's sample functions use the global state
    torch.manual_seed(0)


def samples(info: Any, dtype: torch.dtype, limit: int, grad: bool = False) -> list[Any]:
    """Return the first ``limit`` samples (0: all) on the CPU."""
    seed_all()
    return _first(info.sample_inputs("cpu", dtype, requires_grad=grad), limit)


def error_samples(info: Any, limit: int) -> list[Any]:
    """Return the op's error inputs, on the CPU; each has the sample as ``sample_input``."""
    if info.error_inputs_func is None:
        return []
    seed_all()
    return _first(info.error_inputs("cpu"), limit)


def _first(found: Iterator[Any], limit: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(islice(found, limit or None))


def on(device: str, value: Any) -> Any:
    """Copy all tensors of a pytree to the device, and replace the device "cpu" in arguments by it."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            plain = leaf.detach()
            return (plain.clone() if device == "cpu" else plain.to(device)).requires_grad_(leaf.requires_grad)
        return device if leaf in ("cpu", torch.device("cpu")) and isinstance(leaf, (str, torch.device)) else leaf

    return _pytree.tree_map(move, value)


def with_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Convert all floating-point tensors of a pytree to ``dtype``; those that require gradients become leaves."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
        return leaf

    return _pytree.tree_map(convert, value)
