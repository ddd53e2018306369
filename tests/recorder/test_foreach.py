"""torch._foreach_* in place: one operation for all elements if it is equivalent to the loop; else the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torch_xla
from tests.support.helpers import same
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.graph.graph_spec import GraphSpec

Call = Callable[[list[Tensor]], object]


def graph(tensors: list[Tensor]) -> GraphSpec:
    nodes = recorder.bindings().nodes_of(tensors)
    return graph_spec.describe_graph(recorder.bindings().collect_only(0, nodes))


def four(device: str = "cpu") -> list[Tensor]:
    """Tensors of several shapes that have values."""
    made = [torch.randn(size).to(device) for size in [(3, 4), (), (5,), (3, 4)]]
    torch_xla.sync()
    return made


#: Calls that are one operation.
ONE: dict[str, Call] = {
    "a number": lambda t: torch._foreach_mul_(t, 2.5),
    "numbers": lambda t: torch._foreach_add_(t, [0.5, 1.5, 1, 2]),
    "equal numbers": lambda t: torch._foreach_div_(t, [2.5] * 4),
    "constants": lambda t: torch._foreach_mul_(t, [-1] * 4),
    "a tensor": lambda t: torch._foreach_mul_(t[:3], t[3].sum()),
    "itself": lambda t: torch._foreach_add_(t, t, alpha=2),
    "others": lambda t: torch._foreach_sub_(t[:1], t[3:], alpha=0.5),
    "three lists": lambda t: torch._foreach_addcmul_(t[:1], t[3:], t[3:], value=0.5),
    "lists and numbers": lambda t: torch._foreach_addcdiv_(t[:1], t[3:], t[3:], [0.5]),
    "an interpolation": lambda t: torch._foreach_lerp_(t[:1], t[3:], 0.3),
    "one argument": lambda t: torch._foreach_exp_(t),
    "zeros": lambda t: torch._foreach_zero_(t),
    "values": lambda t: torch._foreach_copy_(t[:1], t[3:]),
    "an alias of itself": lambda t: torch._foreach_add_(t, [x.detach() for x in t]),
}
#: Calls whose elements are written or read twice, have aliases, or are on another device.
LOOPS: dict[str, Call] = {
    "crosswise": lambda t: torch._foreach_add_([t[0], t[3]], [t[3], t[0]]),
    "twice": lambda t: torch._foreach_mul_([t[0], t[0]], 3.0),
    "an alias": lambda t: torch._foreach_mul_([t[0], t[0].detach()], 3.0),
    "a view": lambda t: torch._foreach_mul_([t[0][1], t[2]], 3.0),
    "a view of another": lambda t: torch._foreach_add_([t[0], t[2]], [t[3], t[0].view(-1)[:5]]),
    "a view of itself": lambda t: torch._foreach_add_([t[3]], [t[3].view(-1).view(3, 4)]),
    "a tensor that it writes": lambda t: torch._foreach_mul_([t[1], t[0]], t[1]),
    "a tensor of the CPU": lambda t: torch._foreach_mul_(t, torch.tensor(2.0)),
}


def called(call: Call) -> Callable[..., list[Tensor]]:
    def run(*tensors: Tensor) -> list[Tensor]:
        call(list(tensors))
        return list(tensors)

    return run


@pytest.mark.parametrize("name", [*ONE, *LOOPS])
def test_values(name: str) -> None:
    same(called((ONE | LOOPS)[name]), *four())


@pytest.mark.parametrize("name", [*ONE, *LOOPS])
def test_versions(name: str) -> None:
    """The version counter changes, so autograd detects a modified saved tensor."""
    found = []
    for device in ("cpu", "xla"):
        tensors = four(device)
        before = [t._version for t in tensors]
        (ONE | LOOPS)[name](tensors)
        found.append([t._version - old for t, old in zip(tensors, before, strict=True)])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ONE)
def test_one_operation(name: str) -> None:
    tensors = four("xla")
    ONE[name](tensors)
    ops = Counter(node.op.partition(".")[0] for node in graph(tensors).nodes if node.op != "torch_xla::getitem")
    assert sum(n for op, n in ops.items() if op.startswith("aten::_foreach_")) == 1
    assert ops.total() == 1 + (name == "a tensor"), "and the sum"


def test_equal_numbers_are_one_operand() -> None:
    """An optimizer divides each of its tensors by the same number, which differs in each step."""
    operands, keys = {}, []
    lists = {
        "equal": [2.5] * 3,
        "equal, but not those": [0.5] * 3,
        "of two kinds": [2.5, 2.5, 2],
        "others": [2.5, 3.5, 4.5],
    }
    for name, numbers in lists.items():
        tensors = [torch.zeros(2, device="xla") for _ in range(3)]
        torch._foreach_add_(tensors, numbers)
        recorded = recorder.bindings().collect_only(0, recorder.bindings().nodes_of(tensors))
        operands[name] = len(recorded.floats()) + len(recorded.ints())
        keys.append(recorded.key)
        assert [t.tolist() for t in tensors] == [[n, n] for n in numbers]
    assert operands == {"equal": 1, "equal, but not those": 1, "of two kinds": 3, "others": 3}
    assert keys[0] == keys[1] and len(set(keys)) == 3


MISTAKES: dict[str, Call] = {
    "dtype": lambda t: torch._foreach_mul_([t[0].int()], 0.5),
    "shape": lambda t: torch._foreach_add_([t[1]], [t[0]]),
    "lengths": lambda t: torch._foreach_add_(t[:2], t),
    "none": lambda t: torch._foreach_add_([], 1),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_match_torch(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        MISTAKES[name](four())
    with pytest.raises(RuntimeError) as found:
        MISTAKES[name](four("xla"))
    assert str(found.value).partition("\n")[0] == str(expected.value).partition("\n")[0]


def test_conversions() -> None:
    """A wider operand does not widen the written tensor."""
    same(
        called(lambda t: torch._foreach_add_(t[:1], [t[1].double()])),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3),
    )


def test_inference_tensors() -> None:
    with torch.inference_mode():
        tensors = four("xla")
        torch._foreach_mul_(tensors, 2.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch._foreach_mul_(tensors, 2.0)


def mixed(device: str) -> list[Tensor]:
    """Tensors of several dtypes and numbers of dimensions."""
    made = [torch.ones(2, 3), torch.ones((), dtype=torch.int32), torch.ones(4, dtype=torch.complex64)]
    return [t.to(device) for t in [*made, torch.ones(0, 2), torch.ones(2, dtype=torch.bool), torch.ones(3).bfloat16()]]


#: Calls whose results differ from the operands in dtype or shape, or that raise.
RESULTS: dict[str, Call] = {
    "products with a fraction": lambda t: torch._foreach_mul(t, 0.5),
    "quotients of numbers": lambda t: torch._foreach_div(t, [2, 2, 2.0, 1, True, 3]),
    "sums with a tensor": lambda t: torch._foreach_add(t[:2], t[1]),
    "sums with a tensor of the CPU": lambda t: torch._foreach_add(t[:1], torch.tensor(2.0, dtype=torch.float64)),
    "sums of other dtypes": lambda t: torch._foreach_add(t[:1], [t[0].double()]),
    "sums of other shapes": lambda t: torch._foreach_add(t[:2], [t[0][0], t[0]]),
    "magnitudes": lambda t: torch._foreach_abs(t[:4]),
    "norms": lambda t: torch._foreach_norm([t[0], t[2], t[3]]),
    "extremes": lambda t: torch._foreach_max([t[0], t[1], t[5]]),
    "powers of a number": lambda t: torch._foreach_pow(2.5, t),
    "powers": lambda t: torch._foreach_pow(t[:4], [2.0, 1.5, 2.0, 3.0]),
    "negative powers": lambda t: torch._foreach_pow(t[1:2], -1),
    "quotients with a list in numbers": lambda t: torch._foreach_addcdiv(
        t[:1], t[:1], t[:1], torch.tensor([0.5], device=t[0].device)
    ),
    "quotients with a list in numbers on the CPU": lambda t: torch._foreach_addcdiv(
        [t[0], t[2]], [t[0], t[2]], [t[0], t[2]], torch.tensor([0.5, 2.0])
    ),
    "too few numbers on the CPU": lambda t: torch._foreach_addcmul(t[:2], t[:2], t[:2], torch.ones(1)),
    "products with many numbers": lambda t: torch._foreach_mul(t[:2], torch.ones(2)),
    "differences of bools": lambda t: torch._foreach_sub(t[4:5], t[4:5]),
    "signs of complex numbers": lambda t: torch._foreach_sign(t[2:3]),
    "decimals of integers": lambda t: torch._foreach_floor(t[:2]),
    "no list": lambda t: torch._foreach_exp([]),
    "lists of two lengths": lambda t: torch._foreach_add(t[:1], t[:2]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    """Dtypes, shapes, values and exceptions match the CPU."""

    def outcome(device: str) -> object:
        try:
            found = RESULTS[name](mixed(device))
        except Exception as error:
            return type(error), str(error)
        assert isinstance(found, (list, tuple))
        return [t.cpu() for t in found]

    expected, found = outcome("cpu"), outcome("xla")
    if isinstance(expected, tuple):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)
