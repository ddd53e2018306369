"""Same key, other value: pairs that a cache must keep apart, for every cache that the code has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from helpers import counts
from jax.experimental import io_callback

import torch_xla
from torch_xla.core.xla_builder import call_jax
from torch_xla.interop import jax_function

_STRUCT = jax.ShapeDtypeStruct((3,), np.float32)

JaxFunction = Callable[[jax.Array], Any]


def _ones() -> torch.Tensor:
    return torch.ones(3).to("xla")


# --- functions of jax that differ in what StableHLO does not show


def _nested(add: Callable[[Any], np.ndarray]) -> JaxFunction:
    inner = jax.jit(lambda v: jax.pure_callback(add, _STRUCT, v))
    return lambda v: jax.lax.cond(v[0] > 0, lambda: inner(v), lambda: v)


_CALLBACKS: dict[str, Callable[[Callable[[Any], np.ndarray]], JaxFunction]] = {
    "pure_callback": lambda add: lambda v: jax.pure_callback(add, _STRUCT, v),
    "io_callback": lambda add: lambda v: io_callback(add, _STRUCT, v),
    "nested": _nested,
}


@pytest.mark.parametrize("kind", _CALLBACKS)
def test_functions_with_other_callbacks_are_other_functions(kind: str) -> None:
    def adding(number: int) -> JaxFunction:
        return _CALLBACKS[kind](lambda v: np.asarray(v) + np.float32(number))

    x = _ones()
    results = [call_jax(adding(number), (x,), name="same") for number in (1, 2, 3)]
    assert [float(result[0]) for result in results] == [2.0, 3.0, 4.0]


def test_ordered_callbacks_are_refused_at_the_call() -> None:
    function = lambda v: io_callback(np.asarray, _STRUCT, v, ordered=True)
    with pytest.raises(NotImplementedError, match=r"call_jax: same calls Python in a fixed order.*ordered=False"):
        call_jax(function, (_ones(),), name="same")


def test_debug_callbacks_and_formats_are_in_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    def noting(number: int) -> JaxFunction:
        return lambda v: (jax.debug.callback(lambda _: seen.append(number), v), v + 1)[1]

    def printing(text: str) -> JaxFunction:
        return lambda v: (jax.debug.print(text, v[0]), v + 1)[1]

    x, seen = _ones(), list[int]()
    functions = [noting(1), noting(2), printing("first {}"), printing("second {}")]
    results = [call_jax(function, (x,), name="same") for function in functions]
    torch_xla.sync()
    assert [float(result[0]) for result in results] == [2.0] * 4
    jax.effects_barrier()
    assert sorted(seen) == [1, 2]
    assert sorted(capfd.readouterr().out.split()) == ["1.0", "1.0", "first", "second"]


def test_a_function_made_anew_with_the_same_callback_is_compiled_once() -> None:
    def add(v: Any) -> np.ndarray:
        return np.asarray(v) + np.float32(1)

    x = _ones()
    torch_xla.sync()
    with counts() as moved:
        for _ in range(3):
            x = call_jax(lambda v: jax.pure_callback(add, _STRUCT, v), (x,))
            torch_xla.sync()
    assert moved["CreateCompileHandles"] == 1
    assert float(x[0]) == 4.0


def test_gradients_call_the_callbacks_of_their_own_function() -> None:
    def scaled(number: float) -> JaxFunction:
        scale = lambda v: np.asarray(v) * np.float32(number)
        function = jax.custom_vjp(lambda v: jax.pure_callback(scale, _STRUCT, v))
        function.defvjp(lambda v: (function(v), None), lambda _, g: (jax.pure_callback(scale, _STRUCT, g),))
        return function

    gradients = []
    for number in (2.0, 3.0):
        x = _ones().requires_grad_()
        jax_function(scaled(number))(x).sum().backward()
        assert x.grad is not None
        gradients.append(float(x.grad[0]))
    assert gradients == [2.0, 3.0]
