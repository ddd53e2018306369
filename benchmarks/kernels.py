"""Single operations on the CPU: by torch's kernels in eager mode, by XLA, and by torch's kernels called from a program.

    python -m benchmarks.kernels [--quick] [--only convolution] [--threads 1,2,4]

docs/project/cpu_kernels.md has its table, which decides what programs call
(torch_xla/_engine/lowering/cpu_kernel_call.py). An operation
without a handler has no third time; eager mode tells how fast one could be. Milliseconds; the contestants take turns,
and the least counts. The last column says whether a program calls the handler for this much work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

import torch_xla  # noqa: F401
from benchmarks.report import no_garbage_collection, setting, table
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.lowering import RULES, cpu_kernel_call
from torch_xla._engine.lowering.registry import LoweringRuleContext

Args = tuple[Any, ...]
aten = torch.ops.aten
R = torch.randn


@dataclass(frozen=True)
class Row:
    """An operator and its arguments; what eager mode calls, where that is another one."""

    what: str
    op: str
    args: Callable[[], Args]
    eager: Callable[..., Any] | None = None


def _convolutions(
    what: str, n: int, c: int, size: int, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[Row]:  # fmt: skip
    """The forward pass, and both gradients; of a first layer that of the weights."""
    geometry = [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups

    def inputs() -> tuple[Tensor, Tensor]:
        return R(n, c, size, size, dtype=dtype), R(out, c // groups, k, k, dtype=dtype)

    def backward() -> Args:
        x, w = inputs()
        grad = torch.randn_like(aten.convolution(x, w, None, *geometry))
        return grad, x, w, None, *geometry, [c > 3, True, False]

    name = f"{n}x{c}x{size}x{size}, {out} of {k}x{k}{'' if stride == 1 else f' / {stride}'}{what}"
    return [
        Row(f"convolution {name}", "aten::convolution", lambda: (*inputs(), None, *geometry)),
        Row(f"its gradients {name}", "aten::convolution_backward", backward),
    ]


def _pools(n: int, c: int, size: int, k: int, stride: int, pad: int) -> list[Row]:
    window = [k] * 2, [stride] * 2, [pad] * 2

    def gradient() -> Args:
        x = R(n, c, size, size)
        y, indices = aten.max_pool2d_with_indices(x, *window)
        return torch.randn_like(y), x, *window, [1, 1], False, indices

    def of_average() -> Args:
        x = R(n, c, size, size)
        return torch.randn_like(aten.avg_pool2d(x, *window)), x, *window, False, True, None

    name = f"{n}x{c}x{size}x{size}, {k}x{k} / {stride}"
    x = lambda: (R(n, c, size, size), *window)
    return [
        Row(f"max pooling {name}", "aten::max_pool2d_with_indices", lambda: (*x(), [1, 1], False)),
        Row(f"its gradient {name}", "aten::max_pool2d_with_indices_backward", gradient),
        Row(f"average pooling {name}", "aten::avg_pool2d", lambda: (*x(), False, True, None)),
        Row(f"its gradient {name}", "aten::avg_pool2d_backward", of_average),
    ]


def _attention(n: int, heads: int, length: int, size: int, causal: bool) -> list[Row]:
    of_torch = aten._scaled_dot_product_flash_attention_for_cpu
    backward_of_torch = aten._scaled_dot_product_flash_attention_for_cpu_backward
    qkv = lambda: tuple(R(n, heads, length, size) for _ in range(3))

    def gradients() -> Args:
        q, k, v = qkv()
        out, lse = of_torch(q, k, v, 0.0, causal)
        zero = torch.zeros((), dtype=torch.int64)
        return torch.randn_like(q), q, k, v, None, out, lse, zero, zero, 0.0, [True, True, True, False], causal

    name = f"{n}x{heads}x{length}x{size}{', causal' if causal else ''}"
    return [
        Row(
            f"attention {name}",
            "aten::_scaled_dot_product_efficient_attention",
            lambda: (*qkv(), None, True, 0.0, causal),
            lambda q, k, v, *_: of_torch(q, k, v, 0.0, causal),
        ),
        Row(
            f"its gradients {name}",
            "aten::_scaled_dot_product_efficient_attention_backward",
            gradients,
            lambda g, q, k, v, _, out, lse, *__: backward_of_torch(g, q, k, v, out, lse, 0.0, causal),
        ),
    ]


def _norms(shape: tuple[int, ...]) -> list[Row]:
    """Over channels where there is an image, else over the last dimension."""
    batch = len(shape) == 4
    size = shape[1] if batch else shape[2]
    inputs = lambda: (R(shape), R(size), R(size))

    def forward() -> Args:
        x, w, b = inputs()
        return (x, w, b, None, None, True, 0.1, 1e-5) if batch else (x, [size], w, b, 1e-5)

    def backward() -> Args:
        x, w, b = inputs()
        if batch:
            _, mean, rstd = aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
            return R(shape), x, w, None, None, mean, rstd, True, 1e-5, [True] * 3
        _, mean, rstd = aten.native_layer_norm(x, [size], w, b, 1e-5)
        return R(shape), x, [size], mean, rstd, w, b, [True] * 3

    op, name = f"aten::native_{'batch' if batch else 'layer'}_norm", "x".join(map(str, shape))
    return [
        Row(f"{'batch' if batch else 'layer'} norm {name}", op, forward),
        Row(f"its gradients {name}", f"{op}_backward", backward),
    ]


def _products(m: int, k: int, n: int, dtype: torch.dtype) -> Row:
    name = f"matmul {m}x{k}x{n}, {str(dtype).removeprefix('torch.')}"
    return Row(name, "aten::mm", lambda: (R(m, k, dtype=dtype), R(k, n, dtype=dtype)))


def _lstm(steps: int, batch: int, width: int) -> list[Row]:
    """One layer in one direction, with inputs as wide as its states."""
    name = f"LSTM {steps} steps of {batch}x{width}"
    x, state = R(steps, batch, width), [R(batch, width), R(batch, width)]
    weights = [R(4 * width, width) / width**0.5 for _ in range(2)] + [R(4 * width) for _ in range(2)]

    def layer(x: Tensor, state: list[Tensor], weights: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
        return torch.lstm(x, [s[None] for s in state], weights, True, 1, 0.0, True, False, False)

    def backward() -> Args:
        grads = [R(steps, batch, width), R(batch, width), R(batch, width)]
        output, *residuals = R(steps, batch, width), R(steps, batch, 4 * width), R(steps, batch, width)
        return grads, x, state, weights, output, residuals, "lstm", False, None

    def gradients(grads: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(results[:1], inputs, grads[:1], retain_graph=True)

    inputs = [leaf.detach().requires_grad_() for leaf in (x, *state, *weights)]
    results = layer(inputs[0], inputs[1:3], inputs[3:])
    return [
        Row(name, "torch_xla::rnn_layer", lambda: (x, state, weights, "lstm", False, None), layer),
        Row(f"its gradients, {name}", "torch_xla::rnn_layer_backward", backward, gradients),
    ]


def _rows(words: int, count: int, size: int) -> list[Row]:
    index = lambda: torch.randint(words, (count,))
    whole = lambda: index()[:, None].expand(count, size).contiguous()
    name = f"{count}x{size} into {words}"
    return [
        Row(f"gradient of an embedding {name}", "aten::embedding_dense_backward",
            lambda: (R(count, size), index(), words, -1, False)),
        Row(f"index_add {name}", "aten::index_add", lambda: (torch.zeros(words, size), 0, index(), R(count, size))),
        Row(f"scatter_add {name}", "aten::scatter_add", lambda: (torch.zeros(words, size), 0, whole(), R(count, size))),
    ]  # fmt: skip


def rows() -> list[Row]:
    """All that is measured."""
    bf16 = torch.bfloat16
    return [
        *_convolutions(" (LeNet)", 64, 1, 28, 10, 5), *_convolutions(" (LeNet)", 64, 10, 12, 20, 5),
        *_convolutions(" (ResNet)", 16, 3, 32, 64, 7, 2, 3), *_convolutions(" (ResNet)", 8, 3, 224, 64, 7, 2, 3),
        *_convolutions("", 16, 64, 8, 64, 3, 1, 1), *_convolutions("", 16, 256, 2, 256, 3, 1, 1),
        *_convolutions("", 16, 512, 1, 512, 3, 1, 1), *_convolutions("", 16, 64, 32, 64, 3, 1, 1),
        *_convolutions("", 16, 64, 32, 128, 3, 2, 1), *_convolutions("", 8, 64, 56, 64, 1),
        *_convolutions(", depthwise", 8, 64, 56, 64, 3, 1, 1, 64),
        *_convolutions(", depthwise", 2, 16, 8, 16, 3, 1, 1, 16),
        *_convolutions(" (ConvNeXt)", 8, 96, 28, 96, 7, 1, 3, 96),
        *_convolutions(", 4 groups", 8, 64, 28, 64, 3, 1, 1, 4), *_convolutions(" (ViT)", 8, 3, 64, 96, 16, 16),
        *_convolutions("", 1, 8, 8, 8, 3, 1, 1), *_convolutions(", bfloat16", 16, 64, 16, 64, 3, 1, 1, 1, bf16),
        *_convolutions(", float64", 16, 64, 16, 64, 3, 1, 1, 1, torch.float64),
        *_attention(8, 4, 64, 32, True), *_attention(8, 3, 197, 64, False), *_attention(2, 8, 512, 64, True),
        *_pools(64, 10, 24, 2, 2, 0), *_pools(16, 64, 16, 3, 2, 1), *_pools(8, 64, 112, 3, 2, 1),
        *(Row(f"sort {n}x{m}", "aten::sort", lambda n=n, m=m: (R(n, m), -1, False))
          for n, m in ((16, 1000), (1, 100_000), (1000, 32), (8, 50_257))),
        *(Row(f"topk 10 of {n}x{m}", "aten::topk", lambda n=n, m=m: (R(n, m), 10, -1, True, True))
          for n, m in ((16, 1000), (8, 50_257))),
        *(_products(*size, dtype) for dtype in (torch.float32, bf16)
          for size in ((64, 64, 64), (512, 128, 384), (512, 512, 512), (1024, 1024, 1024))),
        *_norms((16, 64, 8, 8)), *_norms((16, 512, 2, 2)), *_norms((8, 64, 56, 56)), *_norms((4, 8, 8, 8)),
        *_norms((8, 64, 128)), *_norms((8, 512, 768)), *_norms((2, 8, 64)),
        *(Row(f"sum of rows {n}x{m}", "aten::sum.dim_IntList", lambda n=n, m=m: (R(n, m), [0]),
              lambda x, dims: x.sum(dims))
          for n, m in ((16, 64), (64, 64), (512, 384), (4096, 3072))),
        *_lstm(64, 32, 128), *_lstm(64, 64, 256), *_lstm(32, 1, 128), *_lstm(128, 64, 512),
        *_rows(256, 512, 128), *_rows(30_000, 2048, 256),
    ]  # fmt: skip


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _flat(item)]
    return [result]


def _array(x: Tensor) -> jax.Array:
    return jnp.asarray(x.float().numpy(), jnp.bfloat16) if x.dtype == torch.bfloat16 else jnp.asarray(x.numpy())


class _Contest:
    """One row: what each contestant runs."""

    def __init__(self, row: Row) -> None:
        self.row = row
        torch.manual_seed(0)
        self.args = row.args()
        namespace, _, name = row.op.partition("::")
        self.eager = row.eager or getattr(getattr(torch.ops, namespace), name).default
        self.leaves, self.structure = jax.tree.flatten(self.args)
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.arrays = [_array(self.leaves[i]) for i in self.places]

    def _rule(self, *arrays: jax.Array) -> list[Any]:
        leaves = list(self.leaves)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        args = jax.tree.unflatten(self.structure, leaves)
        rule = RULES[self.row.op]
        context = LoweringRuleContext(rule.name, self._promises(), jnp.zeros(2, jnp.uint32) if rule.random else None)
        # All but the random state of attention, which no caller reads.
        found = _flat(rule.function(context, *args) if rule.ctx else rule.function(*args))
        return [x for x in found if x is not None][: 2 if rule.random else None]

    def _promises(self) -> list[Any]:
        found = [((), None) if x is None else (tuple(x.shape), x.dtype) for x in _flat(self.eager(*self.args))]
        return found if "attention" not in self.row.op else [*found, ((), torch.int64), ((), torch.int64)]

    def compiled(self, handlers: bool) -> tuple[Callable[[], Any], int]:
        """What runs the rule, and how many calls it has."""
        with library.kernels_enabled(jax.devices("cpu")[0] if handlers else None) as (_, called):
            found = jax.jit(self._rule).lower(*self.arrays).compile()
        return lambda: jax.block_until_ready(found(*self.arrays)), called.total()

    def times(self, seconds: float) -> list[str]:
        """The cells of the row."""
        xla, _ = self.compiled(handlers=False)
        _, chosen = self.compiled(handlers=True)
        with mock.patch.object(cpu_kernel_call, "is_profitable", return_value=True):
            handler, calls = self.compiled(handlers=True)
        contestants = [lambda: self.eager(*self.args), xla, *([handler] if calls else [])]
        found = [least * 1e3 for least in _measure(contestants, seconds)]
        cells = [f"{ms:.3f}" for ms in found]
        if not calls:
            return [self.row.what, *cells, "", "", ""]
        return [self.row.what, *cells, f"{found[2] / found[1]:.2f}", "yes" if chosen else "no"]


def _measure(contestants: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    for run in contestants:
        run()
    found: list[list[float]] = [[] for _ in contestants]
    end = time.perf_counter() + seconds * len(contestants)
    while len(found[0]) < 5 or (time.perf_counter() < end and len(found[0]) < 50):
        for run, times in zip(contestants, found, strict=True):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return [min(times) for times in found]


HEAD = ["one operation, ms", "eager", "XLA", "kernel", "kernel / XLA", "called"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    parser.add_argument("--threads", default="", help="numbers of torch's threads, with commas between them")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in f"{row.what} {row.op}"]
    loaded = library.load_library()
    assert loaded is not None, "the handlers are turned off, or cannot be built"
    for threads in map(int, filter(None, (options.threads or str(torch.get_num_threads())).split(","))):
        torch.set_num_threads(threads)
        loaded.set_thread_count()
        with jax.enable_x64(True), no_garbage_collection():
            cells = [_Contest(row).times(0.02 if options.quick else 0.3) for row in chosen]
        print(f"{setting()}, {threads} threads of torch\n\n{table(HEAD, cells)}\n", flush=True)


if __name__ == "__main__":
    main()
