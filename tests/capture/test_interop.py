"""torch_xla.interop: memory shared with jax, which is never donated; torch functions inside jax."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import assert_same, counts, run_script
from torch_xla._engine.capture import array_sharing
from torch_xla.interop import from_jax, module_as_jax, to_jax, torch_function_as_jax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64], ids=str)
def test_arrays_there_and_back(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    array = to_jax(x.to("xla").t())
    assert array.shape == (3, 2)
    back = from_jax(array)
    assert back.dtype == dtype
    assert_same(back, x.t().contiguous())


def test_nothing_is_copied() -> None:
    x = torch.randn(64).to("xla")
    torch_xla.sync()
    array = to_jax(x)
    assert array.unsafe_buffer_pointer() == to_jax(x).unsafe_buffer_pointer()
    assert to_jax(from_jax(array)).unsafe_buffer_pointer() == array.unsafe_buffer_pointer()


def test_an_array_that_the_user_has_is_never_donated() -> None:
    x = torch.ones(64).to("xla")
    array = to_jax(x)
    for _ in range(3):
        x.add_(1)
        torch_xla.sync()
    assert not array.is_deleted()
    assert np.asarray(array).tolist() == [1.0] * 64
    mine = jnp.full(64, 5.0)
    tensor = from_jax(mine)
    tensor.mul_(2)
    torch_xla.sync()
    assert np.asarray(mine).tolist() == [5.0] * 64
    assert tensor.tolist() == [10.0] * 64


def test_what_the_user_has_let_go_is_donated_again() -> None:
    x = torch.ones(64).to("xla")
    torch_xla.sync()
    array = to_jax(x)
    twin = array_sharing._alias_array(array)  # detects whether the buffer was deleted
    held = len(array_sharing._shared)
    del array
    gc.collect()
    assert len(array_sharing._shared) == held - 1
    x.add_(1)
    torch_xla.sync()
    assert twin.is_deleted()


def test_arrays_that_cannot_be_tensors() -> None:
    with pytest.raises(TypeError, match=r"from_jax: torch has no dtype for key<fry>\[\]"):
        from_jax(jax.random.key(0))
    with pytest.raises(TypeError, match=r"from_jax: expected a jax.Array with a value"):
        from_jax(np.ones(3))  # type: ignore[arg-type]
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(ValueError, match="has been deleted"):
        from_jax(gone)
    with pytest.raises(TypeError, match=r"to_jax: expected an xla tensor, got torch.float32\[3\] on cpu"):
        to_jax(torch.ones(3))


def test_arrays_of_other_devices() -> None:
    run_script(
        """
        import jax, numpy as np, torch, torch_xla
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from torch_xla.interop import from_jax, to_jax
        torch.ones(1).to("xla")
        second = jax.device_put(np.arange(4.0, dtype=np.float32), jax.devices()[1])
        tensor = from_jax(second)
        assert tensor.device == torch.device("xla:1"), tensor.device
        assert to_jax(tensor).unsafe_buffer_pointer() == second.unsafe_buffer_pointer()
        halves = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("a",)), PartitionSpec("a"))
        spread = jax.device_put(np.arange(4.0), halves)
        tensor = from_jax(spread)
        assert tensor.device == torch.device("xla:0") and tensor.tolist() == [0, 1, 2, 3], tensor
        """,
        CPU_NUM_DEVICES="2",
    )


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def test_a_module_in_jit_and_grad() -> None:
    net, x = _net(), torch.randn(5, 4)
    function, parameters = module_as_jax(_net().to("xla"))
    loss = jax.jit(lambda p, a: jnp.sum(function(p, a) ** 2))
    with counts() as moved:
        value, gradients = jax.value_and_grad(loss)(parameters, jnp.asarray(x.numpy()))
    assert not moved.fallbacks
    expected = (net(x) ** 2).sum()
    expected.backward()
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in net.named_parameters():
        got = torch.from_numpy(np.asarray(gradients[name]).copy())
        torch.testing.assert_close(got, parameter.grad, rtol=1e-4, atol=1e-5)
    torch_xla.sync()  # no placeholder is left


def test_gradients_are_torchs_where_jax_has_others() -> None:
    """The gradient of a norm at zero is 0 in torch, NaN in jax."""
    norm = torch_function_as_jax(lambda a: a.norm())
    assert np.asarray(jax.grad(norm)(jnp.zeros(3))).tolist() == [0.0] * 3
    assert np.isnan(np.asarray(jax.grad(jnp.linalg.norm)(jnp.zeros(3)))).all()


def test_structures_integers_and_results_without_a_gradient() -> None:
    def f(values: dict[str, torch.Tensor], n: torch.Tensor, factor: int) -> dict[str, Any]:
        return {"y": values["a"].sin() * factor, "best": n.argmax()}

    function = torch_function_as_jax(f)
    a, n = jnp.arange(3.0), jnp.array([1, 5, 2])
    gradient = jax.grad(lambda v: function(v, n, 2)["y"].sum())({"a": a})
    np.testing.assert_allclose(gradient["a"], 2 * np.cos(a), rtol=1e-6)
    assert int(function({"a": a}, n, 2)["best"]) == 1


def test_randomness_needs_a_seed() -> None:
    drop = torch_function_as_jax(lambda a: nn.functional.dropout(a, 0.5))
    with pytest.raises(ValueError, match=r"draws random numbers.*pass seed="):
        drop(jnp.ones(8))
    first, again, other = (np.asarray(drop(jnp.ones(64), seed=s)) for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert set(first.tolist()) == {0.0, 2.0}
