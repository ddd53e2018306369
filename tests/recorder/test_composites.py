"""Ops that torch decomposes with reads of values or storages: the step is not split, and results match torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_xla
from tests.support.helpers import READING, counts

GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "prod": lambda x: x.prod(),
    "prod in float64": lambda x: x.prod(dtype=torch.float64),
    "prod of a dim": lambda x: x.prod(1),
    "prod, kept": lambda x: x.prod(-2, True),
    "prod of nothing": lambda x: x[:0].prod(0),
    "prod of a number": lambda x: x[0, 0].prod(),
    "prod in 16 bits": lambda x: x.bfloat16().prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod of the first dim": lambda x: x.cumprod(0),
    "cumprod of a number": lambda x: x[0, 1].cumprod(0),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
}


def _gradients(function: Callable[[torch.Tensor], torch.Tensor], device: str, order: int = 1) -> list[torch.Tensor]:
    x = torch.tensor([[1.0, 0, 3], [0, 0, 2], [4, 4, 2]], device=device, requires_grad=True)
    results = [function(x)]
    for _ in range(order):
        weights = torch.arange(1, results[-1].numel() + 1, device=device).reshape(results[-1].shape)
        (found,) = torch.autograd.grad((results[-1] * weights).sum(), x, create_graph=True)
        results.append(found)
    return [r.detach() for r in results]


@pytest.mark.parametrize("name", list(GRADIENTS))
def test_gradients_read_nothing(name: str) -> None:
    with counts() as moved:
        got = _gradients(GRADIENTS[name], "xla")
    assert not moved.fallbacks and not moved[READING] and not moved.executions
    for g, e in zip(got, _gradients(GRADIENTS[name], "cpu"), strict=True):
        torch.testing.assert_close(g.cpu(), e)


@pytest.mark.parametrize("name", ["prod", "prod of a dim", "cumprod"])
def test_second_gradients(name: str) -> None:
    for g, e in zip(_gradients(GRADIENTS[name], "xla", 2), _gradients(GRADIENTS[name], "cpu", 2), strict=True):
        torch.testing.assert_close(g.cpu(), e)


def test_without_gradients_one_op_is_recorded() -> None:
    x = torch.ones(3, 4, device="xla")
    with counts() as moved:
        x.prod(), x.prod(1), x.cumprod(0), x.max(), x.min()
    assert {name for name in moved if name.startswith("xla::")} == {"xla::prod", "xla::cumprod", "xla::max", "xla::min"}


@pytest.mark.parametrize("name", ["silu", "mish"])
def test_gradients_of_16_bits_round_once(name: str) -> None:
    """torch has a kernel for them on the CPU and decomposes them on other devices, where each op rounds."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 4096, dtype=torch.bfloat16)
    found = []
    for device in ("cpu", "xla"):
        leaf = x.detach().to(device).requires_grad_()
        getattr(F, name)(leaf).backward(grad.to(device))
        assert leaf.grad is not None
        found.append(leaf.grad.cpu())
        with pytest.raises(RuntimeError, match=f"derivative for aten::{name}_backward is not implemented"):
            getattr(torch.ops.aten, f"{name}_backward")(leaf, leaf).sum().backward()
    torch.testing.assert_close(found[1], found[0], rtol=2**-7, atol=0)


def test_equal_reads_one_bool() -> None:
    x = torch.arange(6.0, device="xla")
    with counts() as moved:
        assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1) and not torch.equal(x, x[:3])
        assert torch.equal(x[:0], x[:0])
        assert torch.equal(x, x.long()) and not torch.equal(x + 0.5, x.long())  # matches the CPU
    assert not moved.fallbacks and moved[READING] == 4


def _ctc(device: str, targets: str, lengths: str, reduction: str, zero_infinity: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(12, 3, 5).to(device).requires_grad_()
    rows = torch.tensor([[1, 2, 2, 4], [3, 1, 1, 1], [4, 1, 2, 3]])
    counted, times = torch.tensor([4, 3, 0]), torch.tensor([12, 9, 7])
    if targets == "in a row":
        rows = torch.cat([row[:n] for row, n in zip(rows, counted, strict=True)])
    if lengths == "tensors on the device":
        counted, times = counted.to(device), times.to(device)
    elif lengths == "numbers":
        counted, times = tuple(counted.tolist()), tuple(times.tolist())
    probs = x.log_softmax(-1)
    loss = F.ctc_loss(probs, rows.to(device), times, counted, reduction=reduction, zero_infinity=zero_infinity)
    return [loss.detach(), *torch.autograd.grad(loss.sum(), x)]


@pytest.mark.parametrize("targets", ["in rows", "in a row"])
@pytest.mark.parametrize("lengths", ["numbers", "tensors", "tensors on the device"])
def test_ctc_loss(targets: str, lengths: str) -> None:
    reduction = {"numbers": "none", "tensors": "sum"}.get(lengths, "mean")
    with counts() as moved:
        got = _ctc("xla", targets, lengths, reduction, True)
    assert not moved.fallbacks
    for g, e in zip(got, _ctc("cpu", targets, lengths, reduction, True), strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=1e-5, atol=1e-5)


def test_ctc_loss_compiles_once_for_all_lengths() -> None:
    x, rows = torch.randn(12, 2, 5, device="xla").log_softmax(-1), torch.ones(2, 4, dtype=torch.long, device="xla")
    torch_xla.sync()
    compiled = []
    for lengths in ([4, 3], [2, 1], [1, 4]):
        with counts() as moved:
            F.ctc_loss(x, rows, torch.tensor([12, 11]), torch.tensor(lengths)).item()
        compiled.append(moved.compilations)
    assert compiled == [1, 0, 0]


def _impossible(device: str, zero_infinity: bool) -> torch.Tensor:
    probs, targets = torch.zeros(2, 1, 3).log_softmax(-1).to(device), torch.ones(1, 2, dtype=torch.long, device=device)
    return F.ctc_loss(probs, targets, (2,), (2,), reduction="none", zero_infinity=zero_infinity).cpu()


def test_ctc_loss_of_impossible_targets() -> None:
    for zero_infinity in (True, False):
        torch.testing.assert_close(_impossible("xla", zero_infinity), _impossible("cpu", zero_infinity))
    with pytest.raises(RuntimeError, match="blank must be in label range"):
        F.ctc_loss(torch.zeros(2, 1, 3, device="xla"), torch.ones(1, 2, device="xla").long(), (2,), (2,), blank=3)


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_writes_its_noise(inplace: bool) -> None:
    x = torch.tensor([-1.0, 2, -3], device="xla")
    noise = torch.zeros(3, device="xla")
    function = torch._C._nn.rrelu_with_noise_ if inplace else torch._C._nn.rrelu_with_noise
    with counts() as moved:
        out = function(x.clone(), noise, 0.1, 0.2, True)
    assert not moved.fallbacks
    assert (noise[1] == 1) & (noise[0] >= 0.1) & (noise[2] < 0.2)
    torch.testing.assert_close(out.cpu(), (x * noise).cpu())
    assert F.rrelu(x, 0.5, 0.5, training=True, inplace=True) is x
    torch.testing.assert_close(x.cpu(), torch.tensor([-0.5, 2, -1.5]))


def _statistics(device: str, training: bool) -> list[torch.Tensor]:
    x, ones = torch.linspace(-1, 2, 12).reshape(4, 3).to(device), torch.ones(3, device=device)
    mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
    results = torch._native_batch_norm_legit(x, ones, ones, mean, var, training, 0.1, 1e-5)
    if training:
        results = *results, *torch.ops.aten._batch_norm_with_update(x, ones, ones, mean, var, 0.1, 1e-5)[:3]
    return [t.cpu() for t in (*results, mean, var)]


@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_write_their_statistics(training: bool) -> None:
    for g, e in zip(_statistics("xla", training), _statistics("cpu", training), strict=True):
        torch.testing.assert_close(g, e)


def _written_statistics(device: str, name: str, training: bool, sizes: list[int]) -> list[Any]:
    """Return what batch norm writes: out, saved and running statistics; and whether it returns its outs."""
    x = torch.linspace(-1, 2, 12).reshape(4, 3).to(device)
    running = torch.zeros(3, device=device), torch.ones(3, device=device)
    outs = [torch.full((size,), 9.0, device=device) for size in sizes]
    results = getattr(torch.ops.aten, name).out(
        x, None, None, *running, training, 0.1, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2]
    )
    return [*(t.cpu() for t in (*outs, *running)), [a is b for a, b in zip(results, outs, strict=True)]]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("sizes", [[12, 3, 3], [0, 0, 0]])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_batch_norms_write_to_out(name: str, training: bool, sizes: list[int]) -> None:
    with counts() as moved:
        got = _written_statistics("xla", name, training, sizes)
    assert not moved.fallbacks
    torch.testing.assert_close(got, _written_statistics("cpu", name, training, sizes))


def test_batch_norm_rejects_an_out_of_another_dtype() -> None:
    x, mean, var = torch.ones(4, 3, device="xla"), torch.zeros(3, device="xla"), torch.ones(3, device="xla")
    outs = {name: torch.zeros(3, device="xla", dtype=torch.float64) for name in ("out", "save_mean", "save_invstd")}
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        torch.ops.aten.native_batch_norm.out(x, None, None, mean, var, True, 0.1, 1e-5, **outs)
    assert mean.eq(0).all()


@pytest.mark.parametrize(
    ("a", "b"), [((5, 2, 3), (3,)), ((5, 2, 3), (3, 4)), ((3,), (5, 3, 2)), ((2, 1, 4, 3), (3, 3, 2))]
)
def test_matmul_into_a_tensor(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.randn(a), torch.randn(b)
    out = torch.empty_like(x @ y, device="xla")
    assert torch.matmul(x.to("xla"), y.to("xla"), out=out) is out
    torch.testing.assert_close(out.cpu(), x @ y)


def test_kron_into_a_tensor() -> None:
    x, y = torch.randn(2, 3), torch.randn(4, 1)
    out = torch.ones(8, 3, device="xla")
    assert torch.kron(x.to("xla"), y.to("xla"), out=out) is out
    torch.testing.assert_close(out.cpu(), torch.kron(x, y))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode() -> None:
    x = torch.tensor([[1.0, 0, 3], [0.5, 2, 1]])
    for function in (lambda x: (x.exp() * x).sum(), lambda x: x.prod(0), lambda x: x.t() @ x[:, :1]):
        got, expected = (torch.func.jvp(function, (t,), (torch.ones_like(t),)) for t in (x.to("xla"), x))
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g.cpu(), e)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.to("xla"), torch.ones(2, 3, device="xla"))
        tangent = torch.autograd.forward_ad.unpack_dual(dual[0].view(3, 1) * 2).tangent
    torch.testing.assert_close(tangent.cpu(), torch.full((3, 1), 2.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.complex(x, x.double()),
        lambda x: x.uniform_(3, -1),
        lambda x: x.index_add(0, torch.tensor([0, 1], device=x.device), x.new_ones(3)),
        lambda x: x.masked_scatter(torch.ones(4, dtype=torch.uint8, device=x.device), x),
    ],
)
def test_raises_when_recorded_as_on_the_cpu(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        call(torch.ones(4))
    with pytest.raises(expected.type) as got:
        call(torch.ones(4, device="xla"))
    assert str(got.value).split("(")[0][:40] == str(expected.value).split("(")[0][:40]
