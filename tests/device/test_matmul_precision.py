"""Precision of float32 matmuls: torch's setting, torch_xla's, and a change compiles again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from jax import lax
from torch.nn.functional import conv1d

import torch_xla
from tests.support.helpers import counts, products, stablehlo
from torch_xla import backends
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.device import devices, matmul_precision


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts without a setting and leaves none."""
    monkeypatch.setattr(matmul_precision, "_chosen", None)
    program_cache.cache.clear()
    # torch.testing's utilities, which other tests import, forbid to set torch.backends otherwise.
    with torch.backends.__allow_nonbracketed_mutation():
        _as_torch_starts()
        yield
        _as_torch_starts()


def _as_torch_starts() -> None:
    torch.set_float32_matmul_precision("highest")
    for part in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        part.fp32_precision = "none"


def _run() -> tuple[str, str]:
    """The precisions that a product and a convolution are compiled with."""
    program_cache.cache.clear()
    x = torch.ones(3, 3, device="xla")
    result = x @ x, conv1d(x[None], x[:, :, None])
    torch_xla.sync()
    (text,) = stablehlo()
    del result
    (_, product), (_, convolution) = sorted(products(text), key=lambda p: "1x3x3" in p[0])
    return product, convolution


SETTINGS: dict[str, tuple[Callable[[], None], str, str]] = {
    "none": (lambda: None, "HIGHEST", "HIGHEST"),
    "torch high": (lambda: torch.set_float32_matmul_precision("high"), "HIGH", "HIGHEST"),
    "torch medium": (lambda: torch.set_float32_matmul_precision("medium"), "DEFAULT", "HIGHEST"),
    "torch tf32": (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "HIGH", "HIGHEST"),
    "high": (lambda: backends.set_mat_mul_precision("high"), "HIGH", "HIGH"),
    "default": (lambda: backends.set_mat_mul_precision("default"), "DEFAULT", "DEFAULT"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_reach_the_program(name: str) -> None:
    choose, product, convolution = SETTINGS[name]
    choose()
    assert _run() == (product, convolution)
    assert backends.get_mat_mul_precision() == product.lower()


def test_ours_comes_before_torchs() -> None:
    torch.set_float32_matmul_precision("medium")
    backends.set_mat_mul_precision("highest")
    assert _run() == ("HIGHEST", "HIGHEST")


def test_each_setting_has_programs_of_its_own() -> None:
    def compilations() -> int:
        with counts() as moved:
            x = torch.ones(3, 3, device="xla")
            (x @ x).cpu()
        return moved.compilations

    assert [compilations(), compilations()] == [1, 0]
    backends.set_mat_mul_precision("high")
    assert [compilations(), compilations()] == [1, 0]
    backends.set_mat_mul_precision("highest")
    assert compilations() == 0, "the first program again"


def test_names() -> None:
    with pytest.raises(ValueError, match=r"^set_mat_mul_precision: 'tf32' is not one of 'default', 'high', 'highest'"):
        backends.set_mat_mul_precision("tf32")  # type: ignore[arg-type]


def test_tpus_are_fast_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "platform", lambda: "tpu")
    monkeypatch.setattr(matmul_precision, "_known", {})  # what was worked out for this platform
    assert matmul_precision.current_precision() == (lax.Precision.DEFAULT, lax.Precision.DEFAULT)
    torch.set_float32_matmul_precision("high")
    assert matmul_precision.current_precision() == (lax.Precision.HIGH, lax.Precision.DEFAULT)
