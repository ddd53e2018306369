"""Tensors on xla behave like other tensors: creation, transfer, printing, copies. Views are in test_views.py."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import jax
import pytest
import torch
from torch import Tensor, nn

import torch_xla
from tests.support.helpers import assert_same, counts, same

FACTORIES: dict[str, Callable[..., Tensor]] = {
    "zeros": lambda **k: torch.zeros(2, 3, **k),
    "ones": lambda **k: torch.ones(2, 3, dtype=torch.int32, **k),
    "full": lambda **k: torch.full((2, 3), 2.5, **k),
    "full int": lambda **k: torch.full((2,), 7, **k),
    "full bool": lambda **k: torch.full((2,), True, **k),
    "arange": lambda **k: torch.arange(5, **k),
    "arange float": lambda **k: torch.arange(1, 2, 0.25, **k),
    "arange down": lambda **k: torch.arange(5, 0, -2, dtype=torch.float64, **k),
    "linspace": lambda **k: torch.linspace(-1, 1, 5, **k),
    "logspace": lambda **k: torch.logspace(0, 2, 3, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "eye wide": lambda **k: torch.eye(2, 4, dtype=torch.bool, **k),
    "tensor": lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    "tensor float16": lambda **k: torch.tensor([1.5, float("inf")], dtype=torch.float16, **k),
    "tensor bfloat16": lambda **k: torch.tensor([1.5, -0.0], dtype=torch.bfloat16, **k),
    "tensor complex": lambda **k: torch.tensor([1 + 2j], **k),
    "tensor empty": lambda **k: torch.tensor([], **k),
    "tensor scalar": lambda **k: torch.tensor(3, **k),
    "as_tensor": lambda **k: torch.as_tensor([1.0, 2.0], **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(2.0, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "hann_window": lambda **k: torch.hann_window(5, **k),
    "from_numpy-like": lambda **k: torch.asarray([1, 2], **k),
}
LIKES: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": lambda t: torch.ones_like(t, dtype=torch.int64),
    "full_like": lambda t: torch.full_like(t, 3),
    "new_zeros": lambda t: t.new_zeros(2, 2),
    "new_ones": lambda t: t.new_ones((3,), dtype=torch.bool),
    "new_full": lambda t: t.new_full((2,), 1.5),
    "new_tensor": lambda t: t.new_tensor([1, 2]),
    "clone": torch.clone,
}
SHAPES_ONLY: dict[str, Callable[..., Tensor]] = {
    "empty": lambda **k: torch.empty(2, 3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (3, 1), **k),
    "rand": lambda **k: torch.rand(2, 3, **k),
    "randn": lambda **k: torch.randn(4, dtype=torch.float64, **k),
    "randint": lambda **k: torch.randint(3, 9, (5,), **k),
    "randperm": lambda **k: torch.randperm(6, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (3,), **k),
    "empty_like": lambda **k: torch.empty_like(torch.ones(2, **k)),
    "rand_like": lambda **k: torch.rand_like(torch.ones(2, **k)),
    "randn_like": lambda **k: torch.randn_like(torch.ones(2, **k)),
    "randint_like": lambda **k: torch.randint_like(torch.ones(2, **k), 4),
    "new_empty": lambda **k: torch.ones(2, **k).new_empty(3, 1),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    with counts() as moved:
        got = FACTORIES[name](device="xla")
        assert_same(got, FACTORIES[name](device="cpu"))
    assert moved.fallbacks == set()
    assert got.device == torch.device("xla:0")


@pytest.mark.parametrize("name", LIKES)
def test_likes(name: str) -> None:
    same(LIKES[name], torch.ones(2, 3, dtype=torch.float64) * 2)


@pytest.mark.parametrize("name", SHAPES_ONLY)
def test_factories_without_fixed_values(name: str) -> None:
    with counts() as moved:
        got, expected = SHAPES_ONLY[name](device="xla"), SHAPES_ONLY[name](device="cpu")
        assert got.cpu().shape == expected.shape
    assert (got.dtype, got.device.type) == (expected.dtype, "xla")
    assert moved.fallbacks == set()


def test_device_context_and_default() -> None:
    with torch.device("xla"):
        assert torch.ones(2).device.type == nn.Linear(2, 2).weight.device.type == "xla"


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.complex128]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_and_casts(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 2], [3, 100, 7]]).to(dtype)
    x = values.to("xla")
    assert x.dtype == dtype and torch.equal(x.cpu(), values)
    for other in (torch.bool, torch.int64, torch.bfloat16, torch.float64, torch.complex64):
        if dtype.is_complex and not other.is_complex:
            continue  # warns that the imaginary part is dropped
        assert torch.equal(x.to(other).cpu(), values.to(other)), other


def test_many_dims() -> None:
    """More dimensions than numpy supports."""
    x = torch.arange(2.0).reshape([1] * 64 + [2])
    there = x.to("xla")
    assert torch.equal((there + 1).cpu(), x + 1)
    assert torch.equal(there.amax().cpu(), x.amax())  # torch's meta function rejects it


def test_moving() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    y = x.t().to("xla")
    x += 1  # the copy is independent, also of a strided tensor
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert y.to("xla") is y and y.to("xla:0") is y and y.to(torch.float32) is y
    assert y.cpu().is_contiguous() and y.to("cpu", torch.int32).dtype == torch.int32
    assert y.to(torch.ones(1, dtype=torch.float64)).device.type == "cpu"
    assert torch.zeros(3, 2, device="xla").copy_(y).tolist() == y.tolist()
    assert torch.zeros(3, 2).copy_(y).tolist() == y.tolist()
    assert torch.zeros(3, 2, device="xla", dtype=torch.int32).copy_(y.cpu()).cpu().dtype == torch.int32


def test_dropped_uploads_are_released_without_a_step() -> None:
    torch_xla.sync()
    before, x = len(jax.live_arrays()), torch.zeros(100)
    for _ in range(50):
        x.to("xla")
    assert len(jax.live_arrays()) <= before + 1


def test_downloaded_tensor_is_an_ordinary_one() -> None:
    y = torch.ones(2, device="xla").cpu()
    y.resize_(4).fill_(2)
    y.set_(torch.zeros(3))
    assert y.tolist() == [0] * 3 and torch.ones((), device="xla").cpu().resize_(0).numel() == 0


def test_reading() -> None:
    assert torch.tensor(2.5, device="xla").item() == 2.5
    assert torch.tensor([True], device="xla").item() is True
    assert torch.ones(2, 2, device="xla", dtype=torch.int64).tolist() == [[1, 1], [1, 1]]
    x = torch.tensor([3], device="xla")
    assert (int(x), float(x), bool(x), f"{x[0]}", list(range(5))[x]) == (3, 3.0, True, "3", 3)
    assert [int(v) for v in torch.arange(3, device="xla")] == [0, 1, 2]
    assert len(torch.zeros(4, 1, device="xla")) == 4 and 1.0 in torch.ones(2, device="xla")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor(1.0), "tensor(1., device='xla:0')"),
        (torch.tensor([1, 2]), "tensor([1, 2], device='xla:0')"),
        (torch.tensor([0.5, 2]).half(), "tensor([0.5000, 2.0000], device='xla:0', dtype=torch.float16)"),
        (torch.zeros(0, 2), "tensor([], device='xla:0', size=(0, 2))"),
        (torch.tensor([1.0], requires_grad=True), "tensor([1.], device='xla:0', requires_grad=True)"),
    ],
)
def test_print(value: Tensor, text: str) -> None:
    x = value.detach().to("xla").requires_grad_(value.requires_grad)
    assert repr(x) == str(x) == f"{x}" == text if x.dim() else repr(x) == text


def test_print_of_results() -> None:
    x = torch.ones(1, device="xla", requires_grad=True)
    assert repr(x * 2) == "tensor([2.], device='xla:0', grad_fn=<MulBackward0>)"
    assert repr(nn.Parameter(x.detach())).startswith("Parameter containing:\ntensor([1.], device='xla:0'")


def test_copies_are_deep() -> None:
    x = torch.ones(3, device="xla")
    for y in (copy.copy(x), copy.deepcopy(x), x.clone(), pickle.loads(pickle.dumps(x))):
        y += 1
        assert y.device == x.device
        assert (x.tolist(), y.tolist()) == ([1] * 3, [2] * 3)


def test_deepcopy_keeps_ties() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("xla")
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight and twin[0].weight is not model[0].weight


def test_device_type() -> None:
    x = torch.ones(2, 3, device="xla")
    assert type(x) is torch.Tensor and x.is_xla and not x.is_cpu and x.layout == torch.strided
    assert x.get_device() == 0 and x.element_size() == 4 and x.nbytes == 24


@pytest.mark.parametrize(
    "view",
    [torch.t, lambda x: x[:, 1], lambda x: x[::2], lambda x: x.expand(2, 2, 3), lambda x: x.diagonal(),
     lambda x: x.permute(1, 0), lambda x: x.T.contiguous().T, lambda x: x.unfold(1, 2, 1), lambda x: x.narrow(1, 1, 1),
     lambda x: x[1:], lambda x: x[0], lambda x: x.t().t(), lambda x: x[:1].t(), lambda x: x.view(3, 2)],
)  # fmt: skip
def test_contiguous_as_on_the_cpu(view: Callable[[Tensor], Tensor]) -> None:
    """Strides are hidden, but contiguous() copies where the strides would require it."""
    x, y = torch.rand(2, 3, device="xla"), torch.rand(2, 3)
    shown, expected = view(x), view(y)
    assert shown.is_contiguous() == expected.is_contiguous() == (shown.contiguous() is shown)
    for copied, base in ((shown.contiguous(), x), (expected.contiguous(), y)):
        base.fill_(1)
        copied.mul_(5)
    assert_same(x, y)
    assert shown.stride() == torch.empty(shown.shape).stride() and shown.storage_offset() == 0
    assert shown.view(-1).shape == (shown.numel(),)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_no_storage() -> None:
    x = torch.ones(2, device="xla")
    for read in (x.data_ptr, lambda: x.untyped_storage().cpu(), lambda: x.storage()[0], x.numpy, x.__array__):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            read()
    assert x.tolist() == [1, 1]


def test_module_to() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.BatchNorm1d(3)})
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert model.to("xla") is model
    assert all(p.device.type == "xla" and p.requires_grad and p.is_leaf for p in model.parameters())
    assert_same(dict(model.state_dict()), state)
    model.double().to("cpu")
    assert model["a"].weight.dtype == torch.float64 and model["a"].weight.device.type == "cpu"


def test_tied_weights() -> None:
    """As documented, weights can be tied after the move; see test_module_to.py for ties from before."""
    model = nn.ModuleList([nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)]).to("xla")
    model[1].weight = model[0].weight
    assert model[1].weight is model[0].weight
    with torch.no_grad():
        model[0].weight.zero_()
    assert model[1].weight.abs().sum().item() == 0


def test_state_dict_loads_into_a_module_on_xla() -> None:
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to("xla")
    target.load_state_dict(source.state_dict())
    assert_same(dict(target.state_dict()), dict(source.state_dict()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [3, 64, 5000])
def test_copies_share_no_memory(size: int, dtype: torch.dtype) -> None:
    """A later write to the CPU tensor or to the device tensor does not change the other."""
    zeros = torch.zeros(size, dtype=dtype)
    source = zeros.clone()
    x = source.to("xla")
    source.fill_(1)
    assert torch.equal(x.cpu(), zeros)
    x.logical_not_()
    torch_xla.sync()  # donates the uploaded buffer
    back = x.cpu()
    back.fill_(0)
    assert torch.equal(source, zeros.logical_not().to(dtype)) and torch.equal(x.cpu(), source)
