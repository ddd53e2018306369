"""nn.LSTM, nn.GRU and nn.RNN: values and gradients equal the CPU's, and the program does not grow with the sequence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met

#: Name -> class and its keyword arguments; input size 5, hidden size 4.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "rnn_tanh": (nn.RNN, {}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu"}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers, both directions": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True, "bidirectional": True},
    "projection": {"proj_size": 3, "num_layers": 2, "bidirectional": True},
}
LENGTHS = {"full": None, "packed": [7, 2, 5], "packed, equal lengths": [7, 7, 7]}
CASES = [
    *((kind, "layers, both directions", "full") for kind in KINDS),
    *(("lstm", option, "full") for option in ("no bias", "batch first", "projection")),
    *((kind, "layers, both directions", "packed") for kind in KINDS),
    ("lstm", "projection", "packed"),
    ("gru", "batch first", "packed"),
    ("gru", "no bias", "full"),
    ("lstm", "plain", "packed, equal lengths"),
]


def _results(net: nn.Module, x: Tensor, lengths: list[int] | None, batch_first: bool) -> list[Tensor]:
    """Return the output, the last states, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    given: Any = x
    if lengths is not None:
        sizes = torch.tensor(lengths)
        given = nn.utils.rnn.pack_padded_sequence(x, sizes, batch_first=batch_first, enforce_sorted=False)
    output, last = net(given)
    if lengths is not None:
        output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=batch_first)
    states = list(last) if isinstance(last, tuple) else [last]
    weight = torch.arange(output.numel(), dtype=torch.float64, device=x.device).reshape(output.shape).cos()
    (sum((s.double() ** 2).sum() for s in states) + (output * weight).double().sum()).backward()
    assert x.grad is not None
    torch_xla.sync()  # one program; each read would compile one
    return [output, *states, x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]


@pytest.mark.parametrize(("kind", "option", "lengths"), CASES)
def test_values_and_gradients_equal_the_cpus(kind: str, option: str, lengths: str) -> None:
    cls, base = KINDS[kind]
    net = cls(5, 4, **base, **OPTIONS[option]).double()
    batch_first = net.batch_first
    x = torch.randn((3, 7, 5) if batch_first else (7, 3, 5), dtype=torch.float64)
    expected = _results(net, x, LENGTHS[lengths], batch_first)
    twin = copy.deepcopy(net).to("xla")
    twin.zero_grad()
    met.clear_counters()
    actual = _results(twin, x.to("xla"), LENGTHS[lengths], batch_first)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)
    assert not [name for name in met.counter_names() if name.startswith("aten::")], "nothing runs on the CPU"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_dtypes(kind: str, dtype: torch.dtype) -> None:
    """16-bit layers are as close to float64 as those of the CPU, within twice its error and one rounding."""
    cls, base = KINDS[kind]
    net = cls(5, 4, **base).double()
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    exact = _results(net, x, None, False)
    net.zero_grad()
    narrow = copy.deepcopy(net).to(dtype)
    rounding = torch.finfo(dtype).eps
    on_cpu = _results(copy.deepcopy(narrow), x.to(dtype), None, False)
    on_xla = _results(narrow.to("xla"), x.to("xla", dtype), None, False)
    for a, b, c in zip(on_xla, on_cpu, exact, strict=True):
        assert a.dtype == dtype
        scale = c.abs().max()
        error, allowed = (a.cpu().double() - c).abs().max(), (b.double() - c).abs().max()
        assert error <= 2 * allowed + 8 * rounding * scale, (error, allowed)


def test_dropout_between_layers() -> None:
    """Gradients use the masks of the forward pass; evaluation has none."""
    torch.manual_seed(0)
    net = nn.LSTM(5, 4, num_layers=2, dropout=0.5).to("xla")
    x = torch.randn(7, 3, 5).to("xla").requires_grad_()
    torch.manual_seed(1)
    output = net(x)[0]
    output.sum().backward()
    assert x.grad is not None
    torch.manual_seed(1)
    step = 1e-2 * torch.sign(x.grad)
    moved = net((x + step).detach())[0]
    expected = (x.grad * step).sum().item()
    assert (moved.sum() - output.sum()).item() == pytest.approx(expected, rel=0.1)
    net.eval()
    assert torch.equal(net(x)[0], net(x)[0])


@pytest.mark.parametrize(("kind", "lengths"), [*((kind, "full") for kind in KINDS), ("gru", "packed")])
def test_gradient_of_a_gradient(kind: str, lengths: str) -> None:
    cls, base = KINDS[kind]
    net = cls(3, 2, bidirectional=True, **base).double()

    def penalty(net: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        given: Any = x
        if lengths == "packed":
            given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
        output = net(given)[0]
        data = output.data if lengths == "packed" else output
        (grad,) = torch.autograd.grad(data.pow(2).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        assert x.grad is not None
        return torch.cat([x.grad.flatten(), *(p.grad.flatten() for p in net.parameters() if p.grad is not None)])

    x = torch.randn(4, 2, 3, dtype=torch.float64)
    twin = copy.deepcopy(net).to("xla")
    torch.testing.assert_close(penalty(twin, x.to("xla")).cpu(), penalty(net, x))


def test_autocast_returns_the_autocast_dtype() -> None:
    net = nn.LSTM(5, 4).to("xla")
    x = torch.randn(7, 3, 5).to("xla")
    with torch.autocast("xla", torch.bfloat16):
        output, (h, c) = net(x)
    assert {output.dtype, h.dtype, c.dtype} == {torch.bfloat16}
    torch.testing.assert_close(output.float(), net(x)[0], atol=0.02, rtol=0.02)
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_compile_one_loop(kind: str) -> None:
    """2,048 steps: the same number of recorded ops as 2 steps, and the values of the CPU."""
    cls, base = KINDS[kind]
    net = cls(5, 4, **base)
    twin = copy.deepcopy(net).to("xla")
    counts = []
    for steps in (2, 512, 2048):
        x = torch.randn(steps, 3, 5)
        given = x.to("xla")
        torch_xla.sync()
        before = met.counter_value("xla::rnn_layer") or 0
        output = twin(given)[0]
        output.sum().backward()
        counts.append((met.counter_value("xla::rnn_layer") or 0) - before)
        torch.testing.assert_close(output.cpu(), net(x)[0], atol=1e-5, rtol=1e-4)
    assert counts == [1, 1, 1]


ERRORS: dict[str, Any] = {
    "input size": lambda dev: nn.LSTM(5, 4).to(dev)(torch.zeros(7, 3, 6, device=dev)),
    "hidden size": lambda dev: nn.GRU(5, 4).to(dev)(torch.zeros(7, 3, 5, device=dev), torch.zeros(1, 2, 4, device=dev)),
    "dtype": lambda dev: nn.RNN(5, 4).to(dev)(torch.zeros(7, 3, 5, device=dev, dtype=torch.float64)),
    "empty sequence": lambda dev: nn.LSTM(5, 4).to(dev)(torch.zeros(0, 3, 5, device=dev)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_calls_raise_as_on_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - the CPU determines which
        ERRORS[name]("cpu")
    with pytest.raises(type(expected.value)):
        ERRORS[name]("xla")


def test_a_cpu_state_is_named() -> None:
    net = nn.GRU(5, 4).to("xla")
    with pytest.raises(RuntimeError, match=r"not (at|on) the same device|not an XLA tensor"):
        net(torch.zeros(7, 3, 5, device="xla"), torch.zeros(1, 3, 4))


def test_torch_func_and_forward_mode() -> None:
    """These use torch's composite kernel."""
    net = nn.RNN(3, 2).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    tangent = torch.randn_like(x)

    def output(net: nn.Module, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(net.named_parameters()), (x,))[0]

    twin = copy.deepcopy(net).to("xla")
    for function in (
        lambda net, x, t: torch.func.grad(lambda x: output(net, x).sum())(x),
        lambda net, x, t: torch.func.jvp(lambda x: output(net, x), (x,), (t,))[1],
    ):
        expected = function(net, x, tangent)
        torch.testing.assert_close(function(twin, x.to("xla"), tangent.to("xla")).cpu(), expected)
