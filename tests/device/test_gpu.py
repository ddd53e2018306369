"""What only a GPU shows: kernels of cuDNN, precision, memory, exchange with CUDA. ``make test-gpu`` runs it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.utils.dlpack as xla_dlpack
from torch_xla import _XLAC
from torch_xla._engine.device import devices

pytestmark = pytest.mark.skipif(os.environ.get("PJRT_DEVICE") != "CUDA", reason="needs a GPU: make test-gpu")
MIB = 2**20


def _fallbacks() -> list[str]:
    return [name for name in met.counter_names() if name.startswith("aten::")]


def test_device_properties() -> None:
    properties = torch.xla.get_device_properties(0)
    assert devices.platform() == "gpu" and "NVIDIA" in properties.name
    assert properties.total_memory > 2**30 and torch.xla.get_device_capability()[0] >= 7
    free, total = torch.accelerator.get_memory_info(0)
    assert 0 < free <= total


@pytest.mark.parametrize("causal", [False, True])
def test_attention_calls_a_kernel(causal: bool) -> None:
    shape = (2, 4, 256, 64)
    inputs = [torch.randn(shape) for _ in range(3)]
    results: list[list[Tensor]] = []
    for device, dtype in (("cpu", torch.float32), ("xla", torch.bfloat16)):
        q, k, v = (x.to(device, dtype).requires_grad_() for x in inputs)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        if device == "xla":
            # The text is of an export, for which jax has no cuDNN attention; the program that runs calls cuDNN.
            assert "triton" in _XLAC._get_xla_tensors_hlo([out, *gradients])
        results.append([x.detach().cpu().float() for x in (out, *gradients)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert not _fallbacks()


@pytest.mark.parametrize("function", [torch.mm, lambda a, b: F.conv2d(a[None, None], b[None, None, :5, :5])])
def test_float32_products_are_exact_by_default(function) -> None:  # type: ignore[no-untyped-def]
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    expected = function(a.double(), b.double())
    error = (function(a.to("xla"), b.to("xla")).cpu() - expected).abs().max() / expected.abs().max()
    assert error < 2e-6


def test_tf32_on_request() -> None:
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    expected = a.double() @ b.double()
    try:
        torch.set_float32_matmul_precision("high")
        error = ((a.to("xla") @ b.to("xla")).cpu() - expected).abs().max() / expected.abs().max()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 1e-6 < error < 1e-2


@pytest.mark.parametrize("shape", [(32, 64, 16), (5, 12, 3), (128, 128, 128)])
def test_int8_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = torch.randint(-128, 127, (m, k), dtype=torch.int8), torch.randint(-128, 127, (k, n), dtype=torch.int8)
    assert torch.equal(torch._int_mm(a.to("xla"), b.to("xla")).cpu(), a.int() @ b.int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_batched_solve(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 4, 4, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
    torch.testing.assert_close(torch.linalg.solve(a.to("xla"), b.to("xla")).cpu(), torch.linalg.solve(a, b))


def test_updates_reuse_buffers() -> None:
    x = torch.zeros(256 * MIB // 4, device="xla")
    torch_xla.sync(wait=True)
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    for _ in range(3):
        x.add_(1)
        torch_xla.sync(wait=True)
    assert torch.accelerator.max_memory_allocated() < before + 300 * MIB
    assert x[:3].tolist() == [3, 3, 3]


def test_exchange_with_cuda_tensors() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    imported = xla_dlpack.from_dlpack(x)
    assert imported.device.type == "xla" and imported.tolist() == x.tolist()
    back = torch.utils.dlpack.from_dlpack(xla_dlpack.to_dlpack(imported + 1))
    assert back.device.type == "cuda" and back.tolist() == (x + 1).tolist()
    assert torch.equal(x.to("xla").cpu(), x.cpu()) and torch.equal(imported.to("cuda"), x)


def test_gradient_scaler_in_float16() -> None:
    from torch_xla.amp import GradScaler, autocast

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to("xla")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.5), GradScaler()
    x, y = torch.randn(64, 16, device="xla"), torch.randint(4, (64,), device="xla")
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with autocast(torch.device("xla"), dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_captured_steps_equal_recorded_ones() -> None:
    results = []
    for replay in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Linear(32, 1)).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x: Tensor, model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = torch_xla.compile(step, replay=replay)
        for number in range(8):
            run(torch.full((4, 8), float(number), device="xla"))
        results.append([parameter.detach().cpu() for parameter in model.parameters()])
    for recorded, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, recorded, rtol=1e-5, atol=1e-6)


def test_events_measure_the_device() -> None:
    start, end = torch.xla.Event(enable_timing=True), torch.xla.Event(enable_timing=True)
    x = torch.randn(4096, 4096, device="xla")
    xm.wait_device_ops()
    start.record()
    for _ in range(10):
        x = x @ x * 1e-3
        torch_xla.sync()
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 1
