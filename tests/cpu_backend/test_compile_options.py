"""Programs whose products are all small do without YNNPACK's graphs, which the first run would have to build."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import pytest
import torch

from tests.support.helpers import same
from torch_xla._engine.base import xla_flags
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.cpu_backend import compile_options


def _texts(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> str:
    """What XLA made of it."""
    program_cache.cache.clear()
    torch.manual_seed(0)
    same(function, *(torch.randn(shape) for shape in shapes), rtol=1e-4, atol=1e-4)
    return "".join(found.compiled.as_text() for found in program_cache.cache.values())


@functools.cache
def _has_library() -> bool:
    """Whether this release of jax multiplies large matrices with YNNPACK: not before 0.10.2."""
    large = jax.ShapeDtypeStruct((512, 512), "float32")
    return "__ynn_fusion" in jax.jit(lambda a, b: a @ b).lower(large, large).compile().as_text()


SMALL = (64, 64), (64, 64)
#: (function, shapes, whether its products are YNNPACK's)
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], bool]] = {
    "small": (lambda a, b: a @ b, SMALL, False),
    "a layer": (torch.nn.functional.linear, ((64, 100), (50, 100), (50,)), False),
    "large": (lambda a, b: a @ b, ((512, 256), (256, 512)), True),
    "one is large": (lambda a, b: (a @ b / 500) @ b[:, :32], ((512, 512), (512, 512)), True),
    "in batches": (lambda a, b: a @ b, ((8, 64, 64), (8, 64, 64)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_who_multiplies(name: str) -> None:
    function, shapes, by_library = CASES[name]
    assert ("__ynn_fusion" in _texts(function, *shapes)) == (by_library and _has_library())


@pytest.mark.parametrize(("size", "by_library"), [(64, False), (2048, True)])
def test_products_of_16_bits_count(size: int, by_library: bool) -> None:
    """Where they are the compiler's, and no handler's."""
    shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((64, size), "bfloat16")
    lowered = jax.jit(lambda a, b: (a @ a).astype(b.dtype) @ b).lower(*shapes)
    compiled = compile_options.compile_with_options(lowered, jax.devices("cpu"))
    assert ("__ynn_fusion" in compiled.as_text()) == (by_library and _has_library())


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = dataclasses.replace(xla_flags.read(), text="--xla_cpu_experimental_ynn_fusion_type=+individual_dot")
    monkeypatch.setattr(xla_flags, "read", lambda: flags)
    assert ("__ynn_fusion" in _texts(lambda a, b: a @ b + 1, (64, 64), (64, 64))) == _has_library()


def test_a_compiler_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles as it does."""
    monkeypatch.setattr(compile_options, "_REDUCTIONS_ONLY", {"xla_cpu_experimental_ynn_fusion_types": "DOT"})
    assert ("__ynn_fusion" in _texts(lambda a, b: a @ b + 2, (64, 64), (64, 64))) == _has_library()


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_options, "_REDUCTIONS_ONLY", {"xla_no_such_option": True})
    lowered = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((8, 8), "float32"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        compile_options.compile_with_options(lowered, jax.devices("cpu"))
