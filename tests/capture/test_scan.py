"""scan and scan_layers equal a Python loop on the CPU, including gradients, and are one loop of the program."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import pytest
import torch
import torch.nn.functional as F
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

import torch_xla
from tests.capture.test_assume_pure import Block, trained
from tests.support.helpers import assert_same, counts, run_script, same, stablehlo
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec
from torch_xla.experimental import scan as scan_module
from torch_xla.experimental.assume_pure import PureModule
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import StackedLayers, scan_layers
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

Step = Callable[[Any, Any], tuple[Any, Any]]


def _loop(fn: Step, carry: Any, xs: Any) -> tuple[Any, Any]:
    """The reference implementation from scan's documentation."""
    length = next(len(t) for t in tree_leaves(xs) if t is not None)
    ys = []
    for i in range(length):
        carry, y = fn(carry, tree_map(lambda t, i=i: t if t is None else t[i], xs))
        ys.append(y)
    return carry, tree_map(lambda *of_step: None if of_step[0] is None else torch.stack(of_step), *ys)


def _scan(fn: Step, init: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """scan on xla, a loop on the CPU."""
    leaves = tree_leaves((init, xs))
    on_xla = any(t is not None and t.device.type == "xla" for t in leaves)
    return scan(fn, init, xs, **options) if on_xla else _loop(fn, init, xs)


def _gradients(results: Any, *inputs: Tensor) -> list[Tensor | None]:
    total = sum(t.pow(2).sum() for t in tree_leaves(results) if t is not None and t.requires_grad)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def _rnn(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    found = _scan(lambda c, x: ((n := torch.tanh(c @ w + x)), (n * x).sum(-1)), c, x)
    return found, _gradients(found, c, x, w)


def _from_outside(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    """Dependent tensors from outside: the gradient of each ends at the loop."""
    double = w * 2

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(c @ double + x @ w), w.sum() * x

    found = _scan(step, c, x)
    return found, _gradients(found, c, x, w)


class _Pair(NamedTuple):
    left: Any
    right: Any


def _nested_values(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    def step(carry: dict[str, Any], item: _Pair) -> tuple[Any, Any]:
        c, (count, nothing) = carry["c"], carry["more"]
        c = torch.sin(c + item.left @ w) * item.right[0]
        return {"c": c, "more": (count + 1, nothing)}, [{"y": c.sum()}, None]

    carry = {"c": c, "more": (torch.zeros((), dtype=torch.int64, device=c.device), None)}
    found = _scan(step, carry, _Pair(x, [x[:, 0, 0], None]))
    return found, _gradients(found, c, x, w)


def _gradient_begins_inside(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    """One carry requires a gradient only after the first step; another one never does."""

    def step(carry: Any, x: Tensor) -> tuple[Any, Any]:
        (a, b), x = carry, x.detach()
        return (torch.tanh(a @ w + x), b * 0.5 + x), (a + b).sum()

    (a, b), y = _scan(step, (c.detach(), c.detach()), x)
    assert a.requires_grad and y.requires_grad and not b.requires_grad
    return (a, b, y), _gradients((a, b, y), w)


def _cut_inside(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    """Only the last step's carry reaches ``c``: in each step the gradient ends."""
    found = _scan(lambda c, x: (x @ w, c.sum() + x.detach()), c, x)
    return found, _gradients(found, c, x, w)


def _within(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    """A nested loop that uses tensors from outside both loops, and from outside the inner loop."""

    def outer(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        shift = x.sum() * w
        inner, ys = _scan(lambda a, b: (torch.tanh(a @ shift + b), a * b), c, x.unsqueeze(1).expand(3, 3, 4))
        return inner, ys.sum(0) + c @ w

    found = _scan(outer, c, x)
    return found, _gradients(found, c, x, w)


def _checkpointed(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c = checkpoint(lambda c: torch.tanh(torch.sin(c @ w) + x), c, use_reentrant=False)
        return c, c.exp()

    found = _scan(step, c, x)
    return found, _gradients(found, c, x, w)


def _below_a_checkpoint(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    run = lambda c: _scan(lambda c, x: (torch.tanh(c @ w + x), c.exp()), torch.sin(c), x)
    found = checkpoint(run, c, use_reentrant=False)
    return found, _gradients(found, c, x, w)


def _in_place(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = c @ w
        y[0].mul_(2)
        y += x
        return torch.tanh(y), y.t()[1:].clone()

    found = _scan(step, c, x)
    return found, _gradients(found, c, x, w)


def _results_that_are_arguments(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    found = _scan(lambda c, x: (c, (x, w, c @ w)), c, x)
    return found, _gradients(found, c, x, w)


def _one_result_used(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    _, ys = _scan(lambda c, x: (torch.tanh(c @ w + x), (c * x, c.sum())), c, x)
    return ys, _gradients(ys[1], c, x, w)


def _autocast(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    with torch.autocast(c.device.type, torch.bfloat16):
        found = _scan(lambda c, x: ((c @ w + x).float(), c @ w), c, x)
    carry, ys = found
    assert ys.dtype == torch.bfloat16
    return found, _gradients((carry, ys.float()), c, x, w)


def _without_gradient(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
    with torch.no_grad():
        carry, ys = _scan(lambda c, x: (torch.tanh(c @ w + x), c.argmax(-1)), c, x)
    assert not carry.requires_grad
    return carry, ys


CASES = [
    _rnn, _from_outside, _nested_values, _gradient_begins_inside, _cut_inside, _within, _checkpointed,
    _below_a_checkpoint, _in_place,
    _results_that_are_arguments, _one_result_used, _autocast, _without_gradient,
]  # fmt: skip


def _operands(length: int = 5) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (3, 4), (length, 3, 4), (4, 4)
    return [(torch.randn(shape) / 2).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_scan_is_the_loop(case: Callable[..., Any]) -> None:
    loose = case is _autocast
    same(case, *_operands(), rtol=2e-2 if loose else 1e-4, atol=2e-2 if loose else 1e-5)


@pytest.mark.parametrize("length", [0, 1])
def test_a_scan_over_little(length: int) -> None:
    c, x, w = (t.to("xla") for t in _operands(length))
    carry, ys = scan(lambda c, x: (c @ w + x, (c.sum(), x.long())), c, x)
    assert_same([*ys], [torch.empty(0), torch.empty(0, 3, 4, dtype=torch.int64)] if not length else
                [c.cpu().sum()[None], x.cpu().long()])  # fmt: skip
    assert_same(carry, (c.cpu() @ w.cpu() + x.cpu()[0]).detach() if length else c.cpu(), rtol=1e-4, atol=1e-5)


def _ops(*tensors: Tensor) -> list[str]:
    graph = recorder.bindings().collect_only(0, recorder.bindings().nodes_of(list(tensors)))
    return [node.op for node in graph_spec.describe_graph(graph).nodes]


def test_forward_and_backward_are_one_operation_each_of_one_program() -> None:
    c, x, w = (t.to("xla").detach().requires_grad_() for t in _operands())
    with counts() as moved:
        for _ in range(3):
            last = scan(lambda c, x, w=w: (torch.tanh(c @ w + x), None), c, x)[0]
            (gradient,) = torch.autograd.grad(last.sum(), w)
            assert _ops(gradient).count("torch_xla::jax_call") == 2
            w = (w - gradient).detach().requires_grad_()
            torch_xla.sync()
    assert moved.compilations == 1
    assert not moved.fallbacks


def test_a_scan_compiles_to_one_loop_whatever_its_length() -> None:
    sizes = []
    for length in (4, 40):
        c, x, w = (t.to("xla").detach() for t in _operands(length))
        torch_xla.sync()
        found = scan(lambda c, x, w=w: (torch.tanh(c @ w + x), None), c, x)
        torch_xla.sync()
        assert found[1] is None
        text = stablehlo()[-1]
        assert text.count("stablehlo.while") == 1
        sizes.append(text.count("\n"))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("inside", [lambda f: f, lambda f: lambda a: checkpoint(f, a, use_reentrant=False)])
def test_each_step_draws_its_own_numbers_and_backward_uses_them(inside: Callable[..., Any]) -> None:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        first = F.dropout(x, 0.5)
        return c, inside(lambda a: F.dropout(a * 1.0, 0.5))(x) + first * 0

    x = torch.ones(6, 64).to("xla").requires_grad_()
    c = torch.zeros(()).to("xla")

    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(2)
        y = scan(step, c, x)[1]
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach().cpu(), gradient.cpu()

    (y, gradient), (again, _) = run(), run()
    assert torch.equal(y, again)
    assert torch.equal(y, gradient)
    assert len({tuple(row.tolist()) for row in y}) == 6
    assert 0.3 < (y == 0).float().mean() < 0.7


def test_a_scan_draws_other_numbers_the_next_time() -> None:
    x = torch.ones(2, 64).to("xla")
    first, second = (scan(lambda c, x: (c, F.dropout(x, 0.5)), None, x)[1] for _ in range(2))
    assert not torch.equal(first.cpu(), second.cpu())


def _kept(run: Callable[[], Tensor]) -> int:
    """Return the number of elements that forward saves for backward."""
    total = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal total
        total += t.numel()
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return total


def test_values_saved_for_backward() -> None:
    x, w = torch.randn(8, 16, 16).to("xla").requires_grad_(), torch.randn(16, 16).to("xla").requires_grad_()

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, None]:
        for _ in range(3):
            c = torch.sin(torch.cos(c @ w)) * x
        return c, None

    def again(c: Tensor, x: Tensor) -> tuple[Tensor, None]:
        return checkpoint(step, c, x, use_reentrant=False)

    def kept(step: Step, partition: Any = scan_module.default_partition) -> float:
        init = torch.zeros(16, 16).to("xla")
        return (_kept(lambda: scan(step, init, x, partition)[0]) - w.numel()) / x.numel()

    # Of each of three rounds what sin, cos and * ask for, of two the result; the carry, x itself.
    assert kept(step) == kept(step, default_partition) == 9 + 2 + 1 + 1
    assert kept(step, min_cut_rematerialization_partition) < 9
    assert kept(again) == 2  # its inputs


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_a_partition_changes_no_value(partition: Any) -> None:
    def run(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
        def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = F.layer_norm(torch.relu(c @ w + x), (4,))
            return c, c.max(-1).values

        found = _scan(step, c, x, **({"partition_fn": partition} if c.device.type == "xla" else {}))
        return found, _gradients(found, c, x, w)

    same(run, *_operands(), rtol=1e-4, atol=1e-5)


def test_a_partition_that_adds_operations_is_rejected() -> None:
    def adds(joint: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        with forward.graph.inserting_before():
            forward.graph.call_function(torch.ops.aten.zeros.default, ([2],))
        return forward, backward

    c, x, w = (t.to("xla").detach().requires_grad_() for t in _operands())
    with pytest.raises(ValueError, match="partition_fn adds adds operations"):
        scan(lambda c, x: (torch.tanh(c @ w + x), None), c, x, partition_fn=adds)


@torch.library.custom_op("test_scan::named", mutates_args=())
def named(value: Tensor, name: str) -> Tensor:
    """The value under a name, by which a partition_fn finds it."""
    return torch.sin(value) - torch.sin(value) + value


named.register_fake(lambda value, name: torch.empty_like(value))
named.register_autograd(lambda ctx, gradient: (gradient, None))


@torch.library.custom_op("test_scan::halves", mutates_args=())
def halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """Two results."""
    return value * 0.5, value * 0.5


halves.register_fake(lambda value: (torch.empty_like(value), torch.empty_like(value)))
halves.register_autograd(lambda ctx, first, second: first * 0.5 + second * 0.5)


def test_a_custom_operator_is_one_node_for_the_partition() -> None:
    seen: list[tuple[str, Any]] = []

    def saves_named(joint: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
        seen.extend((str(n.target), n.args[1:]) for n in joint.graph.nodes if n.op == "call_function")
        return min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    def run(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
        def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            first, second = halves(named(torch.tanh(c @ w), "hidden"))
            return first + second + x, second

        found = _scan(step, c, x, **({"partition_fn": saves_named} if c.device.type == "xla" else {}))
        return found, _gradients(found, c, x, w)

    same(run, *_operands(), rtol=1e-4, atol=1e-5)
    targets = [target for target, _ in seen]
    assert ("test_scan.named.default", ("hidden",)) in seen
    assert targets.count("test_scan.named.default") == targets.count("test_scan.halves.default") == 1
    assert "aten.sin.default" not in targets and "aten.sub.Tensor" not in targets


def _moves_values(joint: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
    """Save what the partitioner of torch.compile saves; values that are not inputs wait in host memory."""
    assert len(joint.graph.find_nodes(op="call_function", target=torch.ops.test_scan.named.default)) == 1
    forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
    (output,) = forward.graph.find_nodes(op="output")
    found = list(output.args[0])
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    for place, value in enumerate(found[num_fwd_outputs:], num_fwd_outputs):
        if value.op == "call_function":
            with forward.graph.inserting_before(output):
                found[place] = forward.graph.call_function(torch.ops.xla.place_to_host.default, (value,))
            with backward.graph.inserting_after(given[value.name]):
                back = backward.graph.call_function(torch.ops.xla.place_to_device.default, (given[value.name],))
            given[value.name].replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
    output.args = (found,)
    return forward, backward


def _with_hooks(step: Step) -> Step:
    """The step; autograd saves its values in host memory."""

    def run(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(place_to_host, place_to_device):
            return step(c, x)

    return run


@pytest.mark.parametrize("way", ["partition_fn", "hooks"])
def test_values_saved_in_host_memory(way: str) -> None:
    """Forward moves them to the host, backward moves them back; they change no value."""
    loops: list[Tensor] = []

    def run(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
        def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = torch.sin(named(torch.tanh(c @ w), "hidden")) + x
            return c, c

        if c.device.type == "cpu":
            found = _scan(step, c, x)
            return found, _gradients(found, c, x, w)
        found = _scan(_with_hooks(step), c, x) if way == "hooks" else _scan(step, c, x, partition_fn=_moves_values)
        gradients = _gradients(found, c, x, w)
        loops.append(torch_xla._XLAC._get_xla_tensors_hlo([*found, *gradients]))
        return found, gradients

    same(run, *_operands(), rtol=1e-4, atol=1e-5)
    bodies = [text for text in loops[0].split("\n\n") if "annotate_device_placement" in text]
    to_host, to_device = (
        [text.count(f'_xla_buffer_placement="{place}"') for text in bodies] for place in ("pinned_host", "device")
    )
    if jax.__version_info__ < (0, 10, 2):  # programs for the CPU have no annotations
        assert not bodies
        return
    assert len(bodies) == 2, "one loop saves them, another one reads them"
    assert [(a > 0, b > 0) for a, b in zip(to_host, to_device, strict=True)] == [(True, False), (False, True)]


def test_inputs_of_the_function_are_not_moved_to_the_host() -> None:
    def moves_inputs(joint: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        (output,) = forward.graph.find_nodes(op="output")
        with forward.graph.inserting_before(output):
            moved = forward.graph.call_function(torch.ops.xla.place_to_host.default, (next(iter(forward.graph.nodes)),))
        output.args = ([*output.args[0], moved],)
        return forward, backward

    c, x, w = (t.to("xla").detach().requires_grad_() for t in _operands())
    with pytest.raises(ValueError, match=r"moves_inputs moves inputs of the function to host memory \(primals_1\)"):
        scan(lambda c, x: (torch.tanh(c @ w + x), None), c, x, partition_fn=moves_inputs)


def test_writes_to_the_carry_are_its_new_value() -> None:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c += x.sum()
        c[0].mul_(2)
        return c, c * 1

    def run(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
        found = _scan(step, c.clone(), x)
        return found, _gradients(found, x)

    def trained(c: Tensor, x: Tensor, w: Tensor) -> tuple[Any, Any]:
        found = _scan(step, c * w.sum(), x)
        return found, _gradients(found, c, x, w)

    c, x, w = _operands()
    same(run, c.detach(), x, w.detach())
    same(trained, c, x, w, rtol=1e-4, atol=1e-5)
    init = torch.zeros(2, device="xla")
    total, _ = scan(lambda c, x: (c.add_(x), None), init, torch.ones(3, 2, device="xla"))
    assert (init.tolist(), total.tolist()) == ([0.0, 0.0], [3.0, 3.0])


def test_a_pure_function_runs_once_and_another_at_each_call() -> None:
    c, x, _ = (t.to("xla").detach() for t in _operands())
    factor, runs = 2.0, 0

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, None]:
        nonlocal runs
        runs += 1
        return c * factor + x, None

    def last(**options: Any) -> Tensor:
        return scan(step, c, x[:1], **options)[0]

    assert_same(last(), (c * 2 + x[0]).cpu())
    factor = 3.0
    assert_same(last(), (c * 3 + x[0]).cpu())
    for _ in range(3):
        last(is_fn_pure=True)
    assert runs == 3


W = torch.ones(4, 4)
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], type[Exception], str]] = {
    "structure": (
        lambda c, x: ((c, c), None),
        ValueError,
        "the structure of the returned carry differs from that of init",
    ),
    "shape": (
        lambda c, x: (c[0], None),
        ValueError,
        r"init is \[float32\[3, 4\]\], but the function returns \[float32\[4",
    ),
    "dtype": (lambda c, x: (c.double(), None), ValueError, r"the function returns \[float64\[3, 4\]\]; convert it"),
    "no pair": (lambda c, x: c, TypeError, "expected a pair"),
    "number": (lambda c, x: (c, 1.0), TypeError, "expected a pytree of xla tensors, found <class 'float'>"),
    "cpu": (lambda c, x: (c, torch.ones(1)), TypeError, r"found torch.float32\[1\] on cpu"),
    "value": (lambda c, x: (c * c.sum().item(), None), RuntimeError, "needs a tensor value"),
    "write x": (lambda c, x: (c, x.add_(1)), RuntimeError, "writes to its argument 1 in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejected(name: str) -> None:
    step, kind, words = REFUSED[name]
    c, x, _ = (t.to("xla").detach() for t in _operands())
    with pytest.raises(kind, match=words):
        scan(step, c, x)
    assert_same(c + 1, c.cpu() + 1)


def test_rejected_arguments() -> None:
    c, x, w = (t.to("xla").detach() for t in _operands())
    step = lambda c, x: (c, None)
    with pytest.raises(ValueError, match="must have equal size in dimension 0"):
        scan(step, c, (x, w))
    with pytest.raises(ValueError, match="must have equal size in dimension 0"):
        scan(step, c, w.sum())
    with pytest.raises(ValueError, match="xs has no tensor"):
        scan(step, c, None)
    with pytest.raises(TypeError, match=r"found torch\.float32.* on cpu"):
        scan(step, c.cpu(), x)
    with pytest.raises(RuntimeError, match="writes to a tensor from outside in place"):
        scan(lambda c, x: (c + w.add_(1), None), w, x)
    with pytest.raises(RuntimeError, match="uses a tensor from outside"):
        scan(lambda c, x: (c @ w, None), c, x, is_fn_pure=True)
    total = scan(lambda c, x: (c * x, None), c, x.requires_grad_())[0].sum()
    with pytest.raises(RuntimeError, match="gradient of the first order only"):
        torch.autograd.grad(total, x, create_graph=True)


# --- scan_layers


def _apart(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


@pytest.mark.parametrize("is_pure", [False, True])
def test_training_with_scan_layers_is_training_the_layers(is_pure: bool) -> None:
    torch.manual_seed(0)
    layers, x = nn.ModuleList(Block() for _ in range(3)), torch.randn(2, 4, 16)
    twins, data = copy.deepcopy(layers).to("xla"), x.to("xla")
    torch_xla.sync()
    with counts() as moved:
        got = trained(twins, lambda x: scan_layers(twins, x, is_layer_pure=is_pure), data)
    assert moved.compilations <= 1  # the two are one program
    assert not moved.fallbacks
    assert_same(got, trained(layers, lambda x: _apart(layers, x), x), rtol=1e-4, atol=1e-5)


def test_training_stacked_layers_is_training_the_layers() -> None:
    torch.manual_seed(0)
    layers, x = nn.ModuleList(Block() for _ in range(3)), torch.randn(2, 4, 16)
    stacked, data = StackedLayers(copy.deepcopy(layers).to("xla")), x.to("xla")
    torch_xla.sync()
    with counts() as moved:
        trained(stacked, stacked, data)
    assert moved.compilations == 1
    trained(layers, lambda x: _apart(layers, x), x)
    for number, layer in enumerate(layers):
        assert_same(stacked.layer_state_dict(number), dict(layer.state_dict()), rtol=1e-4, atol=1e-5)
    assert len(stacked) == 3


@pytest.mark.parametrize("how", ["stacked", "scanned"])
def test_layers_without_references_are_freed(how: str) -> None:
    """Caches reference neither a layer nor its parameters, which may be those of a large model."""
    layers = [Block().to("xla") for _ in range(3)]
    parameters = [weakref.ref(parameter) for layer in layers for parameter in layer.parameters()]
    kept = StackedLayers(layers) if how == "stacked" else scan_layers(layers, torch.ones(2, 4, 16).to("xla")).detach()
    torch_xla.sync()
    del layers
    gc.collect()
    assert [parameter() for parameter in parameters] == [None] * len(parameters)
    del kept


def test_stacked_layers_stack_nothing_in_a_step() -> None:
    stacked = StackedLayers([nn.Linear(4, 4).to("xla") for _ in range(3)])
    x = torch.ones(2, 4).to("xla")
    torch_xla.sync()
    assert set(_ops(stacked(x))) == {"torch_xla::jax_call", "torch_xla::getitem"}


class _Two(nn.Module):
    """Several arguments, a tied weight, an unused parameter, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.c.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.a(x) + y), self.b(y) + self.c(x)


def test_layers_of_several_arguments_and_tied_weights() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(_Two() for _ in range(3))
    twins = copy.deepcopy(layers).to("xla")
    x = torch.randn(2, 4)
    got = scan_layers(twins, (x.to("xla"), x.to("xla")))
    data: Any = (x, x)
    for layer in layers:
        data = layer(*data)
    assert_same(got, data, rtol=1e-4, atol=1e-5)
    wanted = [p for p in layers.parameters() if p.requires_grad]
    ours = [p for p in twins.parameters() if p.requires_grad]
    expected = torch.autograd.grad(sum(t.sum() for t in data), wanted, allow_unused=True)
    found = torch.autograd.grad(sum(t.sum() for t in got), ours, allow_unused=True)
    for e, g in zip(expected, found, strict=True):
        assert_same(g, torch.zeros(2) if e is None and g is not None else e, rtol=1e-4, atol=1e-5)


def test_layers_draw_their_own_numbers() -> None:
    layers = [nn.Sequential(nn.Dropout(0.5), nn.PReLU()).to("xla") for _ in range(3)]
    kept = (scan_layers(layers, torch.ones(4096).to("xla")) != 0).float().mean().item()
    assert kept == pytest.approx(0.5**3, abs=0.03)  # with equal numbers: a half


def test_no_layers() -> None:
    x = torch.ones(2).to("xla")
    assert scan_layers([], x) is x


def test_layers_that_differ_are_rejected() -> None:
    x = torch.ones(2, 4).to("xla")
    linear = lambda *size: nn.Linear(*size).to("xla")
    for others, words in (
        (linear(4, 5), r"layer 1 differs from layer 0: Linear\(in_features=4, out_features=5"),
        (nn.ReLU(), "layer 1 differs from layer 0: ReLU"),
        (linear(4, 4).double(), "layer 1 differ from those of layer 0: weight"),
        (linear(4, 4).eval(), "layer 1 differs from layer 0: training is False"),
    ):
        with pytest.raises(ValueError, match=words):
            scan_layers([linear(4, 4), others], x)


def test_layers_that_write_to_buffers_are_rejected() -> None:
    layers = [nn.BatchNorm1d(4).to("xla") for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"writes to its argument.*BatchNorm in training writes"):
        scan_layers(layers, torch.ones(2, 4).to("xla"))
    x = torch.randn(2, 4)
    evaluated = [layer.eval() for layer in layers]
    assert_same(scan_layers(evaluated, x.to("xla")), x / (1 + 1e-5), rtol=1e-4, atol=1e-5)


SPREAD = """
import copy, sys
import torch, torch_xla, torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch import nn
from tests.capture.test_assume_pure import Block, trained
from torch_xla.experimental.scan_layers import StackedLayers, scan_layers
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

xr.use_spmd()
mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))

class Marked(Block):
    def forward(self, x):
        if x.device.type == "xla":
            xs.mark_sharding(x, mesh, ("data", None, None))
        y = super().forward(x)
        if x.device.type == "xla":
            y = xs.mark_sharding_with_gradients(y, mesh, ("data", None, "model"))
        return y

torch.manual_seed(0)
layers, x = nn.ModuleList(Marked() for _ in range(3)), torch.randn(4, 4, 16)

def train(parameters, run, x):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        run(x).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()

def marked(layers, front=()):
    for name, p in layers.named_parameters():
        if name.endswith(("up.weight", "qkv.weight")):
            xs.mark_sharding(p, mesh, (*front, "model", None))
    return layers

ours = marked(copy.deepcopy(layers).to("xla"))
stacked = marked(StackedLayers(copy.deepcopy(layers).to("xla")), (None,))
data = x.to("xla")
xs.mark_sharding(data, mesh, ("data", None, None))
train(ours.parameters(), lambda x: scan_layers(ours, x), data)
train(stacked.parameters(), stacked, data)

def apart(x):
    for layer in layers:
        x = layer(x)
    return x

train(layers.parameters(), apart, x)
for a, b in zip(ours.parameters(), layers.parameters(), strict=True):
    torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
for number, layer in enumerate(layers):
    for name, value in stacked.layer_state_dict(number).items():
        torch.testing.assert_close(value.cpu(), layer.state_dict()[name], rtol=1e-4, atol=1e-5)
assert "model" in str(xs.get_sharding(ours[0].up.weight)) and "model" in str(xs.get_sharding(stacked.layer.up.weight))
print("done")
"""


def test_layers_over_four_devices() -> None:
    done = run_script(SPREAD, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


class _Checkpointed(nn.Module):
    """Its backward pass recomputes it, when the caller may already have restored the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=False)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.first(x)) * self.second(x)


@pytest.mark.parametrize("way", ["scan_layers", "PureModule"])
def test_what_backward_runs_again_has_the_layers_own_parameters(way: str) -> None:
    layers = nn.ModuleList(_Checkpointed() for _ in range(3))
    x = torch.randn(2, 4)

    def gradients(layers: nn.ModuleList, x: torch.Tensor, way: str) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        if way == "scan_layers":
            result = scan_layers(layers, x)
        else:
            result = x
            for layer in map(PureModule, layers) if way == "PureModule" else layers:
                result = layer(result)
        result.pow(2).sum().backward()
        return [x.grad.cpu(), *(p.grad.cpu() for p in layers.parameters())]

    want = gradients(copy.deepcopy(layers), x, "one by one")
    torch.testing.assert_close(gradients(layers.to("xla"), x.to("xla"), way), want, rtol=1e-5, atol=1e-5)
