"""What works and what is not supported on a PJRT plugin that jax has no rules for: ``make test-plugin`` runs it.

docs/how_to/plugins.md lists the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.device import capabilities, devices
from torch_xla.core import xla_builder
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

pytestmark = pytest.mark.skipif(
    os.environ.get("PJRT_DEVICE") != "fpga", reason="needs a foreign PJRT plugin: make test-plugin"
)


def test_the_client_is_not_jaxlibs() -> None:
    device = devices.device(0)
    assert not capabilities.runs_in_process(device) and device.client.platform in ("fpga", "cpu")


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("_linalg_eigh", torch.linalg.eigvalsh),
        ("_linalg_svd", torch.linalg.svdvals),
        ("linalg_cholesky_ex", torch.linalg.cholesky),
        ("_linalg_solve_ex", lambda a: torch.linalg.solve(a, a)),
        ("linalg_qr", lambda a: torch.linalg.qr(a)[1].abs()),
        ("linalg_solve_triangular", lambda a: torch.linalg.solve_triangular(a, a, upper=True)),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # the warning of a CPU fallback
def test_decompositions_compute_the_same(operator: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Those that the compiler lacks run on the CPU, counted."""
    torch.manual_seed(0)
    a = torch.randn(5, 5)
    a = a @ a.mT + torch.eye(5)
    with counts() as moved:
        found = function(a.to("xla")).cpu()
    torch.testing.assert_close(found, function(a), rtol=1e-4, atol=1e-4)
    name = f"aten::{operator}"
    assert (moved[name] > 0) is not capabilities.supports_operator(name)


def test_memory_kinds() -> None:
    assert {"device", "pinned_host"} <= set(capabilities.memory_kinds(devices.device(0)))
    x = torch.ones(4, device="xla")
    assert (place_to_device(place_to_host(x)) + 1).sum().item() == 8


def test_a_step_updates_with_and_without_donation() -> None:
    device = devices.device(0)
    assert capabilities.donates_buffers(device) is (device.platform == "cpu")  # jax decides by the name
    x = torch.ones(100, device="xla")
    for _ in range(3):
        x.mul_(2)
        torch_xla.sync()
    assert x.sum().item() == 800


def test_python_callbacks_raise_an_error() -> None:
    """Neither jax nor the client has them; what is recorded afterwards runs."""

    def call(a: jax.Array) -> jax.Array:
        found: jax.Array = jax.pure_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
        return found

    x = torch.ones(4, device="xla")
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)callback"):
        xla_builder.call_jax(call, (x,)).cpu()
    assert (x + 1).sum().item() == 8
