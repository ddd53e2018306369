"""ATen's kernels in programs for the CPU: when they are called, and when not; errors and transformations.

That they compute what XLA's do: every test of lowering/ checks rules that may call them both ways (rule_check.py).
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_xla
from tests.support.helpers import counts, run_script, same
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.lowering import RULES, cpu_kernel_call
from torch_xla._engine.lowering.registry import LoweringRuleContext
from torch_xla._engine.lowering.rules import convolution

CALLS = "CpuKernelCalls"


@dataclass
class Case:
    """A computation with gradients that is large enough for a call, and the handlers that it calls."""

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    handlers: set[str]
    dtype: torch.dtype = torch.float32
    loose: float = 2e-3


def _lstm(directions: int, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """The output and the last states, in a row."""
    first = [torch.stack([state] * directions) for state in (h, c)]
    results = torch.lstm(x, first, [*weights] * directions, True, 1, 0.0, False, directions == 2, False)
    return torch.cat([result.flatten() for result in results])


CASES = {
    "lists": Case(lambda x, y: torch.cat(torch._foreach_mul([x, y], 2.5)), ((4, 8), (3, 8)), {"lists"}),
    "convolution": Case(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        ((8, 16, 32, 32), (32, 16, 3, 3), (32,)),
        {"convolution", "convolution_backward"},
    ),
    "channels last": Case(
        lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w).permute(0, 2, 3, 1),
        ((8, 32, 32, 16), (32, 16, 3, 3)),
        {"convolution", "convolution_backward"},
    ),
    "transposed convolution": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1),
        ((8, 32, 200), (32, 16, 5)),
        {"convolution", "convolution_backward"},
    ),
    "depthwise, 3d": Case(
        lambda x, w: F.conv3d(x, w, groups=8, dilation=2),
        ((2, 8, 12, 12, 12), (8, 1, 3, 3, 3)),
        {"convolution", "convolution_backward"},
    ),
    "attention": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 4, 200, 32),) * 3,
        {"attention", "attention_backward"},
    ),
    "attention of transposed heads": Case(
        lambda q, k, v: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), scale=0.3),
        ((2, 200, 4, 32), (2, 180, 4, 32), (2, 180, 4, 32)),
        {"attention", "attention_backward"},
    ),
    "max pooling": Case(
        lambda x: F.max_pool2d(x, 3, 2, 1), ((4, 16, 64, 64),), {"max_pool2d_with_indices_backward", "written"}
    ),
    "average pooling": Case(
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), ((4, 16, 64, 64),), {"avg_pool2d_backward"}
    ),
    "sorting": Case(lambda x: x.sort(0, descending=True)[0], ((200, 50),), {"sort"}),
    "sums of rows": Case(lambda x, y: torch.cat([x.sum(0), y.sum((0, 1))]), ((70, 50), (9, 8, 60)), {"sum"}),
    "sums of rows, on a team": Case(lambda x: x.sum(0, keepdim=True), ((1100, 1300),), {"sum"}),
    **{
        f"layer norm, {name}": Case(
            lambda x, w, b: F.layer_norm(x, x.shape[-2:], w, b) if w.ndim == 2 else F.layer_norm(x, x.shape[-1:], w, b),
            (shape, *(shape[-dims:],) * 2),
            {"layer_norm", "layer_norm_backward"},
        )
        for name, shape, dims in (
            ("small", (5, 20, 77), 1), ("of matrices", (40, 8, 9), 2), ("on a team", (800, 700), 1)
        )
    },
    "layer norm, without weights": Case(
        lambda x: F.layer_norm(x, (64,)), ((50, 64),), {"layer_norm", "layer_norm_backward"}
    ),
    **{
        f"batch norm, {name}": Case(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            (shape, *(shape[1:2],) * 2),
            {"batch_statistics", "batch_gradients"},
        )
        for name, shape in (
            ("images", (8, 16, 8, 8)), ("of few places", (6, 200, 3, 3)), ("vectors", (140, 50)),
            ("of many channels", (3, 2100)), ("of one place", (70, 40, 1, 1)),
            ("on a team", (6, 40, 48, 48)), ("vectors, on a team", (260, 2100)),
        )
    },
    **{
        f"LSTM, {name}": Case(
            functools.partial(_lstm, directions),
            ((steps, batch, 24), *((batch, n),) * 2, (4 * n, 24), (4 * n, n), *((4 * n,),) * 2),
            {"lstm", "lstm_backward"},
        )
        for name, steps, batch, n, directions in (
            ("batch", 9, 6, 77, 1), ("both directions", 9, 6, 77, 2), ("few sequences", 20, 4, 60, 1),
            ("one step", 1, 70, 64, 1)
        )
    },
    "products in 16 bits": Case(
        lambda a, b: (a @ b).relu() + b.t() @ a.t(), ((256, 128), (128, 256)), {"mm"}, torch.bfloat16, 0.1
    ),
    "products of batches in 16 bits": Case(
        lambda a, b: a.bmm(b), ((8, 96, 128), (8, 128, 96)), {"bmm"}, torch.bfloat16, 0.1
    ),
}  # fmt: skip
#: Without these instructions nothing is called for bfloat16.
FAST_16_BITS = "AVX512" in torch.backends.cpu.get_cpu_capability()


def _with_gradients(case: Case) -> Callable[..., list[torch.Tensor]]:
    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        out = case.function(*inputs)
        weights = torch.linspace(-1, 1, out.numel()).to(out.device, out.dtype).reshape(out.shape)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]

    return function


def _inputs(case: Case) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=case.dtype).requires_grad_() for shape in case.shapes]


def _called() -> set[str]:
    """What the programs in memory call."""
    texts = [found.compiled.as_text() for found in program_cache.cache.values()]
    return {name for text in texts for name in re.findall(rf'custom_call_target="{cpu_kernel_call.PREFIX}(\w+)"', text)}


@pytest.mark.parametrize("name", CASES)
def test_values_and_calls(name: str) -> None:
    case = CASES[name]
    program_cache.cache.clear()
    with counts() as moved:
        same(_with_gradients(case), *_inputs(case), rtol=case.loose, atol=case.loose)
    expected = set() if case.dtype == torch.bfloat16 and not FAST_16_BITS else case.handlers
    assert _called() == expected and (moved[CALLS] > 0) == bool(expected)


#: (image, kernel, stride, padding, dilation) of convolutions in which some taps touch padding only, or seem to.
GEOMETRIES = [
    (1, 3, 1, 1, 1), (2, 3, 2, 1, 1), (1, 5, 1, 2, 1), (3, 5, 3, 2, 1), (1, 3, 1, 2, 1), (1, 3, 2, 4, 2),
    (2, 3, 1, 2, 2), (2, 3, 3, 3, 3), (1, 4, 1, 2, 1), (2, 5, 2, 2, 1), (1, 1, 2, 1, 1), (1, 2, 3, 3, 2),
    (3, 2, 4, 1, 3), (2, 7, 1, 3, 1), (2, 3, 1, 3, 3), (3, 3, 1, 3, 4), (1, 7, 4, 3, 1),
]  # fmt: skip


def test_taps_that_touch_padding_only() -> None:
    """They are left out, and their gradients are zero; where an output touches nothing else, too."""

    def function(x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for image, taps, stride, padding, dilation in GEOMETRIES:
            square = x[:, :, :image, :image], weights[:, :, :taps, :taps]
            found.append(F.conv2d(*square, None, stride, padding, dilation))
            high = x[:, :, :, :image], weights[:, :, :3, :taps]
            found.append(F.conv2d(*high, None, (1, stride), (1, padding), (1, dilation)))
        total = sum((out * torch.linspace(-1, 1, out.numel(), device=x.device).view_as(out)).sum() for out in found)
        return [*(out.detach() for out in found), *torch.autograd.grad(total, (x, weights))]

    torch.manual_seed(0)
    program_cache.cache.clear()
    x, weights = torch.randn(64, 64, 4, 4).requires_grad_(), torch.randn(128, 64, 7, 7).requires_grad_()
    with counts() as moved:
        same(function, x, weights, rtol=2e-3, atol=2e-3)
    assert moved[CALLS] >= 2 * len(GEOMETRIES)


def test_long_sums_lose_few_digits() -> None:
    """Those of a million numbers, all of one sign."""
    torch.manual_seed(0)
    x = torch.rand(1 << 20, 2)
    found = torch.stack([x.to("xla").sum(0).cpu(), F.layer_norm(x.T.to("xla"), (1 << 20,), eps=0).std(1).cpu()])
    torch.testing.assert_close(found, torch.stack([x.double().sum(0).float(), torch.ones(2)]), rtol=2e-6, atol=0)


@pytest.mark.parametrize(("cell", "atol"), [(0.0, 1e-37), (1.0, 1e-6)], ids=["from zero", "from one"])
def test_an_lstm_is_accurate_for_all_gates(cell: float, atol: float) -> None:
    """Small and large ones, infinity and NaN: the kernel has its own exp and tanh."""
    torch.manual_seed(0)
    program_cache.cache.clear()
    special = [0.0, 1e-30, 0.6249, 0.625, 9.0, 50.0, 88.0, 89.0, 104.0, 1e30, float("inf"), float("nan")]
    values = torch.cat([torch.tensor(special), -torch.tensor(special), torch.randn(200) * 4])
    hidden, rows = 500, 4
    gates = values[torch.randint(len(values), (4 * hidden,))]
    state, weights = torch.zeros(rows, hidden), torch.zeros(4 * hidden, hidden)
    arguments = torch.zeros(1, rows, 8), state, state + cell, weights[:, :8], weights, gates, torch.zeros_like(gates)
    with counts() as moved:
        same(functools.partial(_lstm, 1), *arguments, rtol=1e-5, atol=atol)
    assert moved[CALLS] == 1


def test_every_handler_has_a_case() -> None:
    elsewhere = {"unpack", "split_bucket", "fill_bucket"}  # below, and tests/execution/test_replay_buckets.py
    assert set().union(*(case.handlers for case in CASES.values())) == set(library.kernel_names()) - elsewhere


def test_a_kernel_reads_transposed_operands_in_place() -> None:
    """XLA writes no transposed copy of an input."""
    q, k, v = (torch.randn(2, 200, 4, 32, device="xla") for _ in range(3))
    torch_xla.sync(wait=True)
    program_cache.cache.clear()
    out = CASES["attention of transposed heads"].function(q, k, v)
    torch_xla.sync()
    (program,) = program_cache.cache.values()
    text = program.compiled.as_text()
    assert all(f"permuted{operand}" in text for operand in range(3))
    assert not re.search(r" (transpose|copy|fusion)\(", text)
    expected = CASES["attention of transposed heads"].function(q.cpu(), k.cpu(), v.cpu())
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-4)


# --- what is written to memory so that it is compiled once: numbers, and the ends of chains ----------------------


def _kernels(parameters: int) -> set[str]:
    """The kernels that XLA made of a step of AdamW, by what they do."""
    program_cache.cache.clear()
    held = [torch.ones(32, 16, device="xla").requires_grad_() for _ in range(parameters)]
    optimizer = torch.optim.AdamW(held, lr=0.1, foreach=False)
    with counts() as moved:
        for _ in range(2):
            torch.stack([(p * p).sum() for p in held]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
    assert moved[CALLS] == 0  # no kernel of ATen's
    assert _called() == {"unpack"}
    text = list(program_cache.cache.values())[-1].compiled.as_text()
    kernels = re.findall(r"^%fused_computation.*?^}", text, re.MULTILINE | re.DOTALL)
    assert kernels
    return {_without_names(kernel) for kernel in kernels}


def _without_names(kernel: str) -> str:
    names: dict[str, str] = {}
    text = re.sub(r", metadata={[^}]*}", "", re.sub(r"[(,] ?[\w.]+: ", "(", kernel))
    return re.sub(r"%[\w.-]+", lambda name: names.setdefault(name[0], f"%{len(names)}"), text)


def test_equal_parameters_share_kernels() -> None:
    assert len(_kernels(3)) == len(_kernels(9))


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(1, keepdim=True)


CHAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elementwise": lambda x: torch.tanh(x) * 1.01,
    "reductions": _centred,
    "normalization": lambda x: F.layer_norm(x, (16,)) * 1.5,
    "lists": lambda x: torch.cat([part + 1 for part in x.split(8)]),
    "products between": lambda x: torch.relu(_centred(x) @ torch.ones(16, 16, device=x.device)) * 0.01,
}


@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_compile_in_proportion(name: str) -> None:
    """XLA's compiler fuses a chain into each kernel that needs a part of it: twice as long was four times the code."""

    def run(device: str, length: int) -> torch.Tensor:
        x = torch.linspace(-1, 1, 256, device=device).reshape(16, 16).requires_grad_()
        y = x
        for _ in range(length):
            y = CHAINS[name](y)
        y.square().sum().backward()
        return x.grad.cpu()

    sizes = []
    for length in (24, 96):
        program_cache.cache.clear()
        torch.testing.assert_close(run("xla", length), run("cpu", length), rtol=1e-3, atol=1e-4)
        (program,) = program_cache.cache.values()
        sizes.append(program.compiled.as_text().count("\n"))
    assert sizes[1] < 5 * sizes[0]


@pytest.mark.parametrize("length", [14, 15, 16])
def test_a_transposed_value_is_written_as_it_is(length: int) -> None:
    """Not as what was transposed, which kernels of ATen know how to read: it is the value written at one length."""
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    y, z = x, x.to("xla")
    program_cache.cache.clear()
    for _ in range(length):
        y, z = y.tanh(), z.tanh()
    torch.testing.assert_close(torch.transpose_copy(z, 0, 1).exp().cpu(), torch.transpose_copy(y, 0, 1).exp())
    assert _called() == {"written"}


@pytest.mark.parametrize("numbers", [[0.5, 1.5, -2.5, 3.25, 7.0], [3, 5, -7, 2**40, 11], [1j, 2 + 1j, -1j, 0.5, 3]])
def test_numbers_one_by_one(numbers: list[Any]) -> None:
    def function(x: torch.Tensor, *several: Any) -> torch.Tensor:
        for number in several:
            x = (x + number) * number
        return x

    x = torch.arange(6).to(torch.result_type(torch.zeros((), dtype=torch.int64), numbers[0]))
    x = x.double() if x.dtype == torch.float32 else x
    program_cache.cache.clear()
    with counts() as moved:
        for change in (0, 1, 2):
            several = [number + change * 2 for number in numbers]
            torch.testing.assert_close(function(x.to("xla"), *several).cpu(), function(x, *several))
    assert moved.compilations == 1 and _called() == {"unpack"}


def test_off() -> None:
    run_script(
        """
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        from torch_xla._engine.cpu_backend import library
        x, w = torch.randn(8, 16, 32, 32), torch.randn(32, 16, 3, 3)
        y = torch.conv2d(x.to("xla"), w.to("xla"))
        torch.testing.assert_close(y.cpu(), torch.conv2d(x, w), rtol=1e-3, atol=1e-3)
        assert library.load_library() is None and met.counter_value("CpuKernelCalls") is None
        """,
        TORCH_XLA_CPU_KERNELS="0",
    )


def _convolution() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 16, 32, 32), torch.randn(32, 16, 3, 3)


def test_little_work_is_not_worth_a_call() -> None:
    with counts() as moved:
        same(torch.conv2d, torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), rtol=1e-4, atol=1e-4)
    assert moved.compilations and moved[CALLS] == 0


def test_one_operation_at_a_time() -> None:
    import torch_xla.experimental

    x, w = _convolution()
    torch_xla.experimental.eager_mode(True)
    try:
        with counts() as moved:
            y = torch.conv2d(x.to("xla"), w.to("xla"))
    finally:
        torch_xla.experimental.eager_mode(False)
    torch.testing.assert_close(y.cpu(), torch.conv2d(x, w), rtol=1e-3, atol=1e-3)
    assert moved[CALLS] == 1


def test_an_error_of_a_kernel_names_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = _convolution()
    true = convolution._Geometry.attributes
    monkeypatch.setattr(convolution._Geometry, "attributes", lambda self: true(self) | {"groups": 3})
    program_cache.cache.clear()
    y = torch.conv2d(x.to("xla"), w.to("xla"), padding=3)
    with pytest.raises(xla_errors.XlaError, match=r"aten::convolution on the CPU: .*groups=3"):
        y.cpu()
    program_cache.cache.clear()
    monkeypatch.undo()
    y = torch.conv2d(x.to("xla"), w.to("xla"), padding=3)
    torch.testing.assert_close(y.cpu(), torch.conv2d(x, w, padding=3), rtol=1e-3, atol=1e-3)


def test_an_attribute_that_is_missing_is_an_error() -> None:
    with library.kernels_enabled(jax.devices("cpu")[0]), jax.enable_x64(True):
        call = jax.jit(lambda x: cpu_kernel_call.cpu_kernel_call("sort", lambda x: [x, x], [x], [x, x], dim=0))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"aten::sort on the CPU: .*descending"):
            jax.block_until_ready(call(jnp.ones(3)))


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) + x


@pytest.mark.parametrize("way", ["pure", "loop", "again"])
def test_in_functions_that_are_recorded_once(way: str) -> None:
    from torch_xla.experimental.assume_pure import PureModule
    from torch_xla.experimental.scan_layers import scan_layers

    torch.manual_seed(0)
    layers, x = torch.nn.ModuleList(_Layer() for _ in range(3)), torch.randn(8, 16, 24, 24)

    def run(device: str) -> list[torch.Tensor]:
        model, y = copy.deepcopy(layers).to(device), x.to(device)
        if way == "loop" and device == "xla":
            y = scan_layers(model, y)
        else:
            for layer in model:
                if way == "pure" and device == "xla":
                    layer = PureModule(layer)
                y = checkpoint(layer, y, use_reentrant=False) if way == "again" else layer(y)
        y.square().mean().backward()
        return [y.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]

    program_cache.cache.clear()
    for got, expected in zip(run("xla"), run("cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert _called() == {"convolution", "convolution_backward"}


# --- where nothing is called -------------------------------------------------------------------------------------


def _rule(x: jax.Array, w: jax.Array) -> jax.Array:
    shape = (x.shape[0], w.shape[0], x.shape[2] - 2, x.shape[3] - 2)
    context = LoweringRuleContext("aten::convolution", [(shape, torch.float32)])
    args = x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    result: jax.Array = RULES["aten::convolution"].function(context, *args)
    return result


def _structs() -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(t.shape), np.float32) for t in _convolution()]


def _arrays() -> list[jax.Array]:
    return [jnp.asarray(t.numpy()) for t in _convolution()]


def test_not_for_other_platforms_nor_unless_offered() -> None:
    with library.kernels_enabled(jax.devices("cpu")[0]):
        traced = jax.jit(_rule).trace(*_structs())
        assert cpu_kernel_call.PREFIX in traced.lower(lowering_platforms=("cpu",)).as_text()
        for platform in ("tpu", "cuda"):
            assert cpu_kernel_call.PREFIX not in traced.lower(lowering_platforms=(platform,)).as_text()
    # What was traced in the block and is lowered after it: the choice is made again.
    assert cpu_kernel_call.PREFIX not in traced.lower(lowering_platforms=("cpu",)).as_text()
    jitted = jax.jit(_rule)  # with caches of jax's
    for platform in ("tpu", "cpu", "tpu"):
        with library.kernels_enabled(jax.devices("cpu")[0] if platform == "cpu" else None):
            assert (cpu_kernel_call.PREFIX in jitted.lower(*_structs()).as_text()) == (platform == "cpu")
    assert cpu_kernel_call.PREFIX not in jitted.lower(*_structs()).as_text()


def test_exported_programs_know_nothing_of_it() -> None:
    from torch_xla.stablehlo import exported_program_to_stablehlo

    model = torch.nn.Conv2d(16, 32, 3)
    text = exported_program_to_stablehlo(torch.export.export(model, (_convolution()[0],))).get_stablehlo_text()
    assert "stablehlo.convolution" in text and "custom_call" not in text


@pytest.mark.parametrize("way", ["grad", "vmap", "jvp"])
def test_transformations_of_jax(way: str) -> None:
    """A rule may be a part of what jax differentiates or maps; then XLA computes it."""
    x, w = _arrays()
    functions: dict[str, Callable[..., Any]] = {
        "grad": lambda x, w: jax.grad(lambda x, w: jnp.sum(_rule(x, w) ** 2), (0, 1))(x, w),
        "jvp": lambda x, w: jax.jvp(_rule, (x, w), (jnp.ones_like(x), w)),
        "vmap": lambda x, w: jax.vmap(_rule, (0, None))(jnp.stack([x, 2 * x]), w),
    }
    expected = jax.jit(functions[way])(x, w)
    with library.kernels_enabled(jax.devices("cpu")[0]):
        got = jax.jit(functions[way])(x, w)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-3, atol=2e-3)


def test_over_several_devices() -> None:
    run_script(
        """
        import os, sys
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
        import jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from tests.cpu_backend.test_cpu_kernels import _arrays, _rule, library, cpu_kernel_call
        mesh = Mesh(np.array(jax.devices()), ("x",))
        x, w = _arrays()
        split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        with library.kernels_enabled(jax.devices("cpu")[0]) as (_, called):
            spread = jax.jit(_rule, in_shardings=(split, whole), out_shardings=split).lower(x, w).compile()
            assert not called and "all-gather" not in spread.as_text()
            each = jax.jit(jax.shard_map(_rule, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))
            compiled = each.lower(x, w).compile()
            assert called == {"convolution": 1} and "all-gather" not in compiled.as_text()
        expected = jax.jit(_rule)(x, w)
        for found in spread, compiled:
            arrays = jax.device_put(x, split), jax.device_put(w, whole)
            np.testing.assert_allclose(found(*arrays), expected, rtol=1e-3, atol=1e-3)
        """
    )
