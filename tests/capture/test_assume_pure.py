"""Pure functions, captured once, return the function's values and gradients; impure functions raise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_xla
from tests.support.helpers import assert_same, counts, run_script, same
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec
from torch_xla.experimental.assume_pure import PureModule, assume_pure, assume_pure_torch, j2t_autograd


class Block(nn.Module):
    """A decoder layer."""

    def __init__(self, size: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, size // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(y), self.dropout, self.training)
        return x + self.scale * self.down(F.silu(self.up(self.norm2(x))))


def _ops(*tensors: Tensor) -> list[str]:
    graph = recorder.bindings().collect_only(0, recorder.bindings().nodes_of(list(tensors)))
    return [node.op for node in graph_spec.describe_graph(graph).nodes]


def trained(layers: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return the parameters after three steps."""
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        run(x).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()
    return [p.detach() for p in layers.parameters()]


def test_training_a_pure_module_is_training_the_module() -> None:
    torch.manual_seed(0)
    layers, x = nn.Sequential(Block(), Block()), torch.randn(2, 4, 16)
    twins = copy.deepcopy(layers).to("xla")
    pure = nn.Sequential(*map(PureModule, twins))
    data = x.to("xla")
    torch_xla.sync()
    with counts() as moved:
        got = trained(pure, pure, data)
    assert moved.compilations == 1
    assert not moved.fallbacks
    assert_same(got, trained(layers, layers, x), rtol=1e-4, atol=1e-5)


def test_a_call_is_one_node_forward_and_one_backward() -> None:
    block = PureModule(Block().to("xla"))
    x = torch.randn(2, 4, 16).to("xla").requires_grad_()
    torch_xla.sync()
    for _ in range(2):
        x.grad = None
        y = block(x)
        assert set(_ops(y)) == {"torch_xla::jax_call", "torch_xla::getitem"}
        y.backward(torch.ones_like(y))
        assert x.grad is not None
        assert _ops(y, x.grad).count("torch_xla::jax_call") == 2


def test_two_functions_of_one_program_are_compiled_once() -> None:
    x = torch.randn(2, 4, 16).to("xla")
    first, second = (PureModule(Block().to("xla")) for _ in range(2))
    torch_xla.sync()
    with torch.no_grad(), counts() as moved:
        first(x)
        a = first(x)
        torch_xla.sync()
        b = second(x)
        torch_xla.sync()
    assert moved.compilations == 1
    assert not torch.equal(a.cpu(), b.cpu())


def test_dropout_is_new_in_each_call_and_follows_the_seed() -> None:
    drop = assume_pure(lambda a: F.dropout(a, 0.5))
    x = torch.ones(64).to("xla").requires_grad_()

    def twice() -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return drop(x), drop(x)

    (first, second), (again, _) = twice(), twice()
    assert not torch.equal(first.cpu(), second.cpu())
    assert torch.equal(first.cpu(), again.cpu())
    (gradient,) = torch.autograd.grad(second.sum(), x)
    assert_same(gradient, second.detach().cpu())


def test_recording_draws_no_random_numbers() -> None:
    fill = assume_pure(lambda a: torch.rand_like(a))
    x = torch.ones(8).to("xla")
    torch.manual_seed(1)
    recorded = fill(x), torch.rand(8, device="xla")
    torch.manual_seed(1)
    known = fill(x), torch.rand(8, device="xla")
    assert_same(list(recorded), [t.cpu() for t in known])


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b).float().sum(0)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a[:2], b),
        lambda a, b: (a.bfloat16(), b.bfloat16()),
        lambda a, b: (a.detach().requires_grad_(), b),
        lambda a, b: (a * 2, b * 2),
    ],
)
def test_other_signatures_are_captured_again(change: Callable[[Tensor, Tensor], Any]) -> None:
    pure = assume_pure(_sum_of_products)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for args in ((a, b), change(a, b), (a, b)):
        assert_same(pure(*(t.to("xla") for t in args)), _sum_of_products(*args), rtol=1e-2, atol=1e-2)


def test_torchs_state_is_in_the_key() -> None:
    pure = assume_pure(lambda a, b: (a @ b, torch.zeros(2, device=a.device)))
    a, b = torch.randn(3, 4).to("xla"), torch.randn(4, 5).to("xla")
    assert [t.dtype for t in pure(a, b)] == [torch.float32] * 2
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert pure(a, b)[0].dtype == torch.bfloat16
    torch.set_default_dtype(torch.float64)
    try:
        assert pure(a, b)[1].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert [t.dtype for t in pure(a, b)] == [torch.float32] * 2
    weight = b.requires_grad_()
    with torch.no_grad():
        assert not pure(a, weight)[0].requires_grad
    assert pure(a, weight)[0].requires_grad


def test_autocast_keeps_nothing_of_the_recording() -> None:
    weight = torch.randn(4, 5).to("xla").requires_grad_()
    x = torch.randn(3, 4).to("xla")
    pure = assume_pure(lambda w, a: a @ w)
    with torch.autocast("xla", dtype=torch.bfloat16):
        y = pure(weight, x)
        torch_xla.sync()
        z = x @ weight
    y.float().sum().backward()
    assert_same(y.detach(), z.detach().cpu())


def test_modes_of_modules_are_in_the_key() -> None:
    block = Block(dropout=0.5).to("xla")
    pure, x = PureModule(block), torch.randn(1, 4, 16).to("xla")
    assert not torch.equal(pure(x).cpu(), pure(x).cpu())
    pure.eval()
    assert_same(pure(x).detach(), block(x).detach().cpu(), rtol=1e-5, atol=1e-5)


def test_a_module_may_change_between_calls() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("xla")
    pure, x = PureModule(net), torch.randn(2, 4).to("xla")
    for change in (
        lambda: net[0].weight.data.mul_(2),
        lambda: setattr(net[0], "bias", None),
        lambda: net.append(nn.Linear(4, 2).to("xla")),
        lambda: net.__setitem__(1, nn.Tanh()),
    ):
        pure(x)
        change()
        assert_same(pure(x).detach(), net(x).detach().cpu())


def test_constants_are_in_the_key() -> None:
    pure = assume_pure_torch(lambda a, *, power: a**power, use_cache=True)
    x = torch.tensor([2.0, 3.0])
    for power in (2, 3, 2.0, 0.5):
        assert_same(pure(x.to("xla"), power=power), x**power)


_outside = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda a: a * float(a.sum()), RuntimeError, "needs a tensor value"),
        (lambda a: a * a.cpu().sum().item(), RuntimeError, "needs a tensor value"),
        (lambda a: a.add_(1), RuntimeError, "writes to its argument 0 in place"),
        (lambda a: a[:2].zero_(), RuntimeError, "writes to its argument 0 in place"),
        (lambda a: 3, TypeError, "expected a pytree of xla tensors as the result"),
    ],
)
def test_impure_functions_are_rejected(function: Callable[..., Any], error: type[Exception], message: str) -> None:
    x = torch.ones(3).to("xla")
    with pytest.raises(error, match=rf"assume_pure: lambda.*{message}"):
        assume_pure(function)(x)
    torch_xla.sync()
    assert_same(x + 1, torch.ones(3) + 1)


def test_a_function_that_keeps_a_tensor_is_rejected() -> None:
    kept: list[Tensor] = []

    def keeping(a: Tensor) -> Tensor:
        kept.append(a.sin())
        return a * kept[-1]

    x = torch.ones(3).to("xla").requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"assume_pure: keeping stores . tensors that outlive the call .*torch.float32\[3\]"
    ):
        assume_pure(keeping)(x)
    torch_xla.sync()
    assert_same(x.detach() + 1, torch.ones(3) + 1)


def test_an_error_that_is_kept_holds_nothing_up() -> None:
    def failing(a: Tensor) -> Tensor:
        b = a.sin()
        view = (b * 2)[:1]
        raise ValueError(f"{b.shape} {view.shape}")

    try:
        assume_pure(failing)(torch.ones(3).to("xla").requires_grad_())
    except ValueError as error:
        kept = error
    torch_xla.sync()
    assert kept.__traceback__ is not None


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_tensor_from_outside_is_rejected(needs_gradient: bool) -> None:
    outside = torch.ones(3).to("xla").requires_grad_(needs_gradient)
    with pytest.raises(RuntimeError, match=r"uses a tensor from outside.*pass it as one"):
        assume_pure(lambda a: a * outside)(torch.ones(3).to("xla"))
    torch_xla.sync()


def test_batchnorm_in_training_is_rejected_and_in_evaluation_pure() -> None:
    norm = nn.BatchNorm1d(4).to("xla")
    pure, x = PureModule(norm), torch.randn(3, 4).to("xla")
    with pytest.raises(RuntimeError, match="PureModule: BatchNorm1d writes to its argument"):
        pure(x)
    pure.eval()
    assert_same(pure(x).detach(), norm(x).detach().cpu())


def test_results_may_be_arguments_and_views_of_them() -> None:
    x = torch.randn(2, 3)
    mine, theirs = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    function = lambda a: {"same": a, "view": a.t()[0], "new": a + 1}
    got, expected = assume_pure(function)(mine), function(theirs)
    sum(t.pow(2).sum() for t in got.values()).backward()
    sum(t.pow(2).sum() for t in expected.values()).backward()
    assert_same({k: v.detach() for k, v in got.items()}, {k: v.detach() for k, v in expected.items()})
    assert_same(mine.grad, theirs.grad)


def test_eager_mode() -> None:
    torch_xla.experimental.eager_mode(True)
    try:
        block = Block()
        x = torch.randn(1, 4, 16)
        pure = PureModule(copy.deepcopy(block).to("xla"))
        assert_same(pure(x.to("xla")).detach(), block(x).detach(), rtol=1e-4, atol=1e-5)
    finally:
        torch_xla.experimental.eager_mode(False)


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    def function(a: Tensor) -> Tensor:
        return checkpoint(lambda b: F.dropout(b * b, 0.5), a, use_reentrant=False) + 0 * F.dropout(a, 0.5)

    def shifted(a: Tensor) -> Tensor:
        return function(a * F.dropout(torch.ones_like(a), 0.0) + 0 * F.dropout(a, 0.5))

    x = torch.ones(256).to("xla").requires_grad_()
    y = assume_pure(shifted)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_same(gradient, 2 * y.detach().cpu())


def test_a_pure_function_within_another() -> None:
    inner = assume_pure(lambda a, b: torch.sin(a) * b)

    def run(a: Tensor) -> tuple[Tensor, Tensor]:
        outer = lambda a: inner(a * 2, a) + 1
        y = (assume_pure(outer) if a.device.type == "xla" else lambda a: torch.sin(a * 2) * a + 1)(a)
        return y, torch.autograd.grad(y.sum(), a)[0]

    same(run, torch.randn(4).requires_grad_(), rtol=1e-4, atol=1e-5)


def test_the_size_limit_of_a_graph_does_not_cut_what_is_recorded() -> None:
    done = run_script(
        """
        import torch, torch_xla
        from torch_xla.experimental.assume_pure import assume_pure

        def function(a):
            for _ in range(30):
                a = torch.sin(a)
            return a

        x = torch.ones(2, device="xla")
        for _ in range(90):
            x = x + 1
        x = assume_pure(function)(x)
        for _ in range(9):
            x = x + 1
        print(-1 <= x.sum().item() - 18 <= 2)
        """,
        check=False,
        XLA_TRIM_GRAPH_SIZE="100",
    )
    assert done.stdout == "True\n", done.stderr


def test_calls_with_one_seed_draw_equal_numbers() -> None:
    drop = assume_pure(lambda a: F.dropout(a, 0.5), add_rng_seed_argument=True)
    x = torch.ones(256).to("xla").requires_grad_()
    seeds = [3, 3, 4, torch.tensor(3).to("xla"), 2**64 + 3, -1]
    drawn = [tuple(drop(x, rng_seed=seed).tolist()) for seed in seeds]
    assert drawn[0] == drawn[1] == drawn[3] == drawn[4]
    assert len(set(drawn)) == 3
    y = drop(x, rng_seed=3)
    assert_same(torch.autograd.grad(y.sum(), x)[0], y.detach().cpu())
    for wrong in (None, 1.0, True, torch.tensor(3), torch.tensor(3.0).to("xla")):
        with pytest.raises(TypeError, match="expected rng_seed=, an integer or a 0-dimensional int64 xla tensor"):
            drop(x, rng_seed=wrong)


def test_without_a_cache_the_function_runs_at_each_call() -> None:
    runs, factor = 0, 2.0

    def function(a: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return a * factor

    x = torch.ones(3).to("xla").requires_grad_()
    cached, again = assume_pure_torch(function, use_cache=True), assume_pure_torch(function)
    for _ in range(3):
        cached(x)
    assert runs == 1
    for factor in (2.0, 3.0):
        y = again(x)
        assert set(_ops(y)) == {"torch_xla::jax_call", "torch_xla::getitem"}
        assert_same(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), factor))
    assert runs == 3


def test_a_known_call_goes_past_python() -> None:
    block = PureModule(Block().to("xla"))
    x = torch.randn(2, 4, 16).to("xla").requires_grad_()
    first = block(x)
    second = block(x)
    assert type(first.grad_fn) is type(second.grad_fn) and "PureCall" in second.grad_fn.name()
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (first, second)]
    assert_same(gradients[0], gradients[1].cpu())
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(second.sum(), x)


def test_a_plan_is_for_tensors_of_its_own_kind() -> None:
    double = assume_pure(lambda a, b: a * b)
    x, y = torch.ones(3).to("xla").requires_grad_(), torch.full((3,), 2.0).to("xla")
    expected = torch.full((3,), 2.0)
    for a, b in ((x, y), (x, y), (y, x), (y, x), (x.detach(), y), (x.double(), y.double()), (x[:1], y), (x, y[0])):
        found = double(a, b)
        assert found.requires_grad == (a.requires_grad or b.requires_grad)
        assert_same(found.detach().float().expand(3), expected)
    with torch.no_grad():
        assert not double(x, y).requires_grad
    with torch.inference_mode():
        assert double(x, y).is_inference()
    half = torch.autograd.grad(double(x, y)[:2].sum(), x)[0]
    assert_same(half, torch.tensor([2.0, 2.0, 0.0]))


def test_only_some_results_have_a_gradient() -> None:
    several = assume_pure(lambda a: (a * 2, a.argmax(), a * 3, a.detach()))
    x = torch.ones(3).to("xla").requires_grad_()
    for _ in range(2):
        first, place, third, apart = several(x)
        assert [t.requires_grad for t in (first, place, third, apart)] == [True, False, True, False]
        assert_same(torch.autograd.grad(third.sum(), x)[0], torch.full((3,), 3.0))


def test_a_jax_function_with_its_gradient() -> None:
    x = torch.randn(3).to("xla").requires_grad_()
    y = j2t_autograd(jnp.sin)(x)
    assert_same(torch.autograd.grad(y.sum(), x)[0], x.detach().cpu().cos(), rtol=1e-4, atol=1e-5)
