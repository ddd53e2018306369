"""jax functions on xla tensors: one node of the program, with jax's values, dtypes and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.helpers import assert_same, counts, run_script
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec
from torch_xla.core.xla_builder import call_jax
from torch_xla.interop import jax_function


def _op_names(*tensors: torch.Tensor) -> list[str]:
    graph = recorder.bindings().collect_only(0, recorder.bindings().nodes_of(list(tensors)))
    return [node.op for node in graph_spec.describe_graph(graph).nodes]


def test_a_call_is_one_node_of_the_one_program_of_a_step() -> None:
    x = torch.randn(3, 4)
    on_xla = x.to("xla")
    torch_xla.sync()
    with counts() as moved:
        y = call_jax(lambda a: jnp.sin(a) * 2, (on_xla * 3,)) + 1
        assert _op_names(y).count("torch_xla::jax_call") == 1
        torch_xla.sync()
    assert moved.compilations == 1
    assert moved.executions == 1
    assert not moved.fallbacks
    assert_same(y, torch.sin(x * 3) * 2 + 1)


def test_structures_go_in_and_out_and_other_leaves_are_constants() -> None:
    x, n = torch.randn(2, 3), torch.arange(3, dtype=torch.int32)

    def f(a: dict[str, Any], b: list[Any], *, factor: float, mode: str | None = None) -> Any:
        assert mode == "wide"
        return {"y": a["x"] * factor, "n": (b[0] + b[1], None)}

    got = call_jax(f, ({"x": x.to("xla")}, [n.to("xla"), 7]), {"factor": 2.5, "mode": "wide"})
    assert got["n"][1] is None
    assert_same({"y": got["y"], "n": got["n"][0]}, {"y": x * 2.5, "n": n + 7})


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex128],
    ids=str,
)
def test_dtypes_are_those_of_the_arrays(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert_same(call_jax(lambda a: a[::-1], (x.to("xla"),)), x.flip(0))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: jnp.arange(3), torch.arange(3)),
        (lambda: (), ()),
        (lambda: {"a": np.float32(2)}, {"a": torch.tensor(2.0)}),
        (lambda: jnp.zeros((0, 2), jnp.float32), torch.zeros(0, 2)),
    ],
)
def test_functions_of_nothing(function: Callable[[], Any], expected: Any) -> None:
    got = call_jax(function, ())
    assert_same(got, expected)


def test_a_function_created_at_each_step_is_compiled_once() -> None:
    x = torch.ones(5).to("xla")
    torch_xla.sync()
    with counts() as moved:
        for _ in range(3):
            x = call_jax(lambda a: a * np.arange(5, dtype=np.float32), (x,))
            torch_xla.sync()
    assert moved.compilations == 1


def test_functions_that_differ_in_a_constant_only_do_not_share_a_program() -> None:
    x = torch.ones(3).to("xla")
    table = np.arange(300.0, dtype=np.float32)  # longer than the printed representation of an array
    other = table.copy()
    other[150] = -1
    results = [call_jax(lambda a, t=t: a + jnp.sum(jnp.asarray(t)), (x,), name="same") for t in (1.0, -0.0, 0.0)]
    first, second = (call_jax(lambda a, t=t: a + t.sum(), (x,), name="same") for t in (table, other))
    assert [float(r[0]) for r in results] == [2.0, 1.0, 1.0]
    assert float(first[0]) == 1 + table.sum()
    assert float(second[0]) == 1 + other.sum()
    kinds = [call_jax(lambda a, k: jnp.full((), k), (x, k)).dtype for k in (1, 1.0, True)]
    assert kinds == [torch.int64, torch.float64, torch.bool]


def test_an_array_of_a_closure_is_a_constant() -> None:
    table = jnp.arange(4, dtype=jnp.float32)
    x = torch.ones(4).to("xla")

    def f(a: jax.Array) -> jax.Array:
        return a + table

    assert_same(call_jax(f, (x,)), torch.arange(4.0) + 1)
    table.delete()
    torch_xla.sync()
    assert_same(call_jax(f, (x,)) * 2, (torch.arange(4.0) + 1) * 2)


def test_mistakes_are_named() -> None:
    x = torch.ones(3).to("xla")
    with pytest.raises(TypeError, match=r"call_jax: expected xla tensors, got torch.float32\[3\] on cpu"):
        call_jax(jnp.sin, (torch.ones(3),))
    with pytest.raises(TypeError, match=r"call_jax: args\[1\], an object of .*bytearray.* no hash"):
        call_jax(lambda a, b: a, (x, bytearray(b"1")))
    with pytest.raises(TypeError, match=r"call_jax: result 0 of lambda is key<fry>"):
        call_jax(lambda a: jax.random.key(0), (x,))
    with pytest.raises(ValueError, match=r"call_jax: .* belongs to another jax transformation"):
        jax.jit(lambda t: call_jax(lambda a: a + t, (x,)) is None)(1.0)
    with pytest.raises(ZeroDivisionError):
        call_jax(lambda a: a / (1 // 0), (x,))
    torch_xla.sync()
    assert_same(x, torch.ones(3))


def test_the_name_is_in_the_graph() -> None:
    y = call_jax(jnp.sin, (torch.ones(3).to("xla"),), name="my sine")
    graph = recorder.bindings().collect_only(0, recorder.bindings().nodes_of([y]))
    assert (0, "my_sine") in graph_spec.describe_graph(graph).nodes[0].args


def test_call_jax_has_no_gradient() -> None:
    x = torch.ones(3).to("xla").requires_grad_()
    assert not call_jax(jnp.sin, (x,)).requires_grad


def _both(function: Callable[..., Any], reference: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Compare values and gradients of a jax function with those of the same torch function on the CPU."""
    ours = [x.detach().clone().to("xla").requires_grad_(x.requires_grad) for x in inputs]
    got, expected = jax_function(function)(*ours), reference(*inputs)
    weights = torch.linspace(0.5, 2, expected.numel()).view(expected.shape)
    (got * weights.to("xla")).abs().sum().backward()
    (expected * weights).abs().sum().backward()
    assert_same(got.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(ours, inputs, strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            assert_same(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_gradients_are_those_of_torch(needs: tuple[bool, bool]) -> None:
    x, w = torch.randn(3, 4).requires_grad_(needs[0]), torch.randn(4, 5).requires_grad_(needs[1])
    _both(lambda a, b: jnp.tanh(a @ b), lambda a, b: torch.tanh(a @ b), x, w)


def test_gradients_of_complex_numbers_are_torchs() -> None:
    z = torch.randn(6, dtype=torch.complex64).requires_grad_()
    _both(lambda a: jnp.sin(a * a * 2j), lambda a: torch.sin(a * a * 2j), z)


def test_integers_and_unused_results_have_no_gradient() -> None:
    x, n = torch.randn(4), torch.arange(4)
    mine, count = x.to("xla").requires_grad_(), n.to("xla")
    results = jax_function(lambda a, i: {"y": a**2, "i": i + 1, "z": jnp.sin(a)})(mine, count)
    assert not results["i"].requires_grad
    results["y"].sum().backward()
    assert_same(mine.grad, 2 * x)
    assert_same(results["i"], n + 1)


def test_a_training_step_with_a_jax_function_compiles_once_and_donates() -> None:
    weight = torch.randn(4, 4).to("xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    x = torch.randn(2, 4).to("xla")
    layer = jax_function(lambda w, a: jnp.tanh(a @ w))
    torch_xla.sync()
    with counts() as moved:
        for _ in range(3):
            optimizer.zero_grad()
            layer(weight, x).sum().backward()
            optimizer.step()
            torch_xla.sync()
    assert moved.compilations == 1
    assert not moved.fallbacks


def test_a_second_derivative_is_rejected() -> None:
    x = torch.randn(3).to("xla").requires_grad_()
    y = jax_function(lambda a: a**3)(x).sum()
    with pytest.raises(RuntimeError, match="jax_function: lambda has a gradient of the first order only"):
        torch.autograd.grad(y, x, create_graph=True)


def test_random_keys_may_be_residuals() -> None:
    x = torch.ones(100).to("xla").requires_grad_()

    def drop(a: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, a.shape), a * 2, 0.0)

    y = jax_function(drop)(x)
    y.sum().backward()
    assert_same(x.grad, y.detach().cpu())


def test_narrow_and_eager_devices() -> None:
    code = """
    import torch, torch_xla, jax.numpy as jnp
    from torch_xla.core.xla_builder import call_jax
    from torch_xla.interop import from_jax, to_jax
    x = torch.tensor([0.5, 1.5]).to("xla")
    y = call_jax(lambda a: (a + 1, a.astype(jnp.float64)), (x,))
    print(y[0].dtype, y[1].dtype, y[0].tolist(), to_jax(x).dtype, from_jax(jnp.ones(2)).dtype)
    """
    expected = "torch.float32 torch.float64 [1.5, 2.5] float32 torch.float32\n"
    assert run_script(code, XLA_USE_BF16="1").stdout == expected
    assert run_script(code, XLA_USE_EAGER_DEBUG_MODE="1").stdout == expected
    assert run_script(code, GET_TENSORS_OPBYOP="1", SYNC_TENSORS_OPBYOP="1").stdout == expected
