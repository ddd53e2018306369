"""torch.func, forward-mode AD, checkpoints, hooks and custom ops behave on xla as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_xla
from tests.support.helpers import counts, same


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))


def _mlp(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ params["w"] + params["b"]).tanh().square().sum()


def _on(x: Tensor, module: nn.Module) -> nn.Module:
    return module.to(x.device)


def _per_sample_gradients(x: Tensor) -> dict[str, Tensor]:
    model = _on(x, _model())
    params = {k: v.detach() for k, v in model.named_parameters()}

    def loss(params: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, params, (sample[None],)).square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(params, x)


def _ensemble(x: Tensor) -> Tensor:
    models = [_on(x, _model(i)) for i in range(3)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    return vmap(lambda p, b, v: functional_call(base, (p, b), (v,)), in_dims=(0, 0, None))(params, buffers, x)


def _in_place(v: Tensor) -> Tensor:
    y = v * 2
    y[0] = 5.0
    y.add_(v)
    return y.t().contiguous() if y.dim() > 1 else y


# Each takes x, a 4x3 float32 tensor on the device.
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "vmap": vmap(lambda v: v.sin() @ v),
    "vmap in_dims": lambda x: vmap(torch.dot, in_dims=(1, None))(x, x[:, 0]),
    "vmap out_dims": vmap(lambda v: v.exp(), out_dims=1),
    "vmap nested": lambda x: vmap(vmap(torch.mul, in_dims=(None, 0)), in_dims=(0, None))(x[:, 0], x[:, 1]),
    "vmap in place": vmap(_in_place),
    "vmap chunks": vmap(lambda v: v.cumsum(0), chunk_size=3),
    "vmap of a matmul": lambda x: vmap(torch.matmul, in_dims=(0, None))(x, x.t()),
    "vmap of a convolution": lambda x: vmap(lambda v: nn.functional.conv1d(v[None, None], v[None, None, :2]))(x),
    "vmap of an index": lambda x: vmap(lambda v: v[torch.tensor([2, 0], device=x.device)])(x),
    "vmap of sort": vmap(lambda v: torch.sort(v)[0]),
    "vmap of where": vmap(lambda v: torch.where(v > 0, v, v.exp())),
    "grad": grad(lambda v: v.sin().sum()),
    "grad of grad": lambda x: vmap(grad(grad(lambda s: s.sin() * s)))(x[:, 0]),
    "grad of argnums": lambda x: grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x + 1),
    "grad with aux": grad(lambda v: (v.exp().sum(), v * 2), has_aux=True),
    "grad and value": grad_and_value(lambda v: v.pow(3).mean()),
    "grad of a dict": lambda x: grad(_mlp)({"w": x.t() @ x, "b": x[0]}, x),
    "grad in place": grad(lambda v: _in_place(v).sum()),
    "jvp": lambda x: jvp(lambda v: v.sin() @ v.t(), (x,), (x + 1,)),
    "vjp": lambda x: (lambda out, back: (out, *back(out)))(*vjp(lambda v: v.exp() @ v.t(), x)),
    "jacrev": jacrev(lambda v: v.sum(0).sin()),
    "jacfwd": jacfwd(lambda v: v.sum(0).sin()),
    "jacrev chunks": jacrev(lambda v: v.sum(0).sin(), chunk_size=2),
    "hessian": hessian(lambda v: (v.pow(3)).sum() + v.prod()),
    "jacfwd of jacrev": lambda x: jacfwd(jacrev(lambda v: v.tanh().sum()))(x[0]),
    "per-sample gradients": _per_sample_gradients,
    "ensemble": _ensemble,
    "functional_call": lambda x: functional_call(_on(x, _model()), {"0.bias": torch.ones(5, device=x.device)}, (x,)),
    "functionalize": lambda x: torch.func.functionalize(_in_place)(x),
    "vmap of a linalg op": lambda x: vmap(lambda v: torch.linalg.solve(torch.eye(3, device=x.device) * 2, v))(x),
    "vmap of norms": vmap(lambda v: nn.functional.layer_norm(v, (3,))),
    "vmap of attention": lambda x: vmap(nn.functional.scaled_dot_product_attention)(
        *[x[:, None, :, None].expand(4, 2, 3, 5)] * 3
    ),
    "vmap of cross entropy": lambda x: vmap(nn.functional.cross_entropy)(
        x, torch.tensor([0, 2, 1, 1], device=x.device)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_func(name: str) -> None:
    with counts() as moved:
        same(FUNCTIONS[name], torch.randn(4, 3), rtol=1e-4, atol=1e-5)
    assert moved.fallbacks == set()


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_of_random_ops(randomness: str) -> None:
    x = torch.zeros(6, 50, device="xla")
    rows = vmap(lambda v: v + torch.rand_like(v), randomness=randomness)(x)
    dropped = vmap(lambda v: nn.functional.dropout(v + 1, 0.5), randomness=randomness)(x)
    for values in (rows.cpu(), dropped.cpu()):
        assert (len({str(row.tolist()) for row in values}) == 1) == (randomness == "same")
    with pytest.raises(RuntimeError, match="vmap: called random operation while in randomness error mode"):
        vmap(torch.rand_like)(x)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's own, on any device
def test_linearize() -> None:
    def run(x: Tensor) -> Any:
        out, push = torch.func.linearize(lambda v: v.sin() * v, x)
        return out, push(x + 1)

    same(run, torch.randn(4, 3))


def test_vmap_of_a_value_is_rejected_as_on_the_cpu() -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match=r"vmap: It looks like you're calling .item\(\) on a Tensor"):
            vmap(lambda v: v.item())(torch.ones(3, device=device))
        with pytest.raises(RuntimeError, match="data-dependent control flow"):
            vmap(lambda v: v if v > 0 else -v)(torch.ones(3, device=device))


def test_ensemble_step_compiles_once() -> None:
    x = torch.randn(4, 3, device="xla")
    with counts() as moved:
        for _ in range(3):
            _per_sample_gradients(x)
            torch_xla.sync()
    assert moved.compilations <= 1


def _dual(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        with fwad.dual_level():
            out = fwad.unpack_dual(function(fwad.make_dual(x, x.cos())))
            return out.primal, out.tangent

    return run


def _dual_module(x: Tensor) -> Any:
    model = _on(x, _model())
    with fwad.dual_level():
        for name, p in list(model.named_parameters()):
            owner = model.get_submodule(name.rpartition(".")[0])
            leaf = name.rpartition(".")[2]
            delattr(owner, leaf)
            setattr(owner, leaf, fwad.make_dual(p.detach(), torch.ones_like(p)))
        return fwad.unpack_dual(model(x)).tangent


FORWARD: dict[str, Callable[[Tensor], Any]] = {
    "sin": _dual(torch.sin),
    "matmul": _dual(lambda v: v @ v.t()),
    "softmax": _dual(lambda v: v.softmax(-1)),
    "in place": _dual(lambda v: (v * 1).mul_(v).add_(1)),
    "views": _dual(lambda v: v.t()[1:].reshape(-1)),
    "cat": _dual(lambda v: torch.cat([v, v * v])),
    "layer_norm": _dual(lambda v: nn.functional.layer_norm(v, (3,))),
    "module": _dual_module,
    "forward over reverse": lambda x: jvp(grad(lambda v: v.exp().sum()), (x,), (x,)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_ad(name: str) -> None:
    same(FORWARD[name], torch.randn(4, 3), rtol=1e-4, atol=1e-5)


def _backward(x: Tensor, y: Tensor, **options: Any) -> Any:
    return torch.autograd.grad(y, x, **options)


def _gradient_penalty(x: Tensor) -> Any:
    model = _on(x, _model())
    (g,) = _backward(x, model(x).sum(), create_graph=True)
    (g.norm(dim=1) - 1).square().mean().backward()
    return [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def _reentrant(reentrant: bool, preserve: bool = True) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        model = _on(x, _model())
        out = checkpoint(model, x, use_reentrant=reentrant, preserve_rng_state=preserve)
        out.square().sum().backward()
        return [out.detach(), x.grad, *(p.grad for p in model.parameters())]

    return run


def _sequential(x: Tensor) -> Any:
    model = _on(x, _model())
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    return x.grad


def _module_hooks(x: Tensor) -> Any:
    model = _on(x, _model())
    seen: list[Any] = []
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda m, args, out: out + 1)
    model[0].register_full_backward_hook(lambda m, gin, gout: seen.append([*gin, *gout]))
    model[3].register_full_backward_pre_hook(lambda m, gout: (gout[0] * 3,))

    def take(p: Tensor) -> None:
        assert p.grad is not None
        seen.append(p.grad.clone())
        p.grad.zero_()

    model[3].weight.register_post_accumulate_grad_hook(take)
    model[3].bias.register_hook(lambda g: g + 1)
    model(x).sum().backward()
    return [x.grad, seen, [p.grad for p in model.parameters()]]


def _optimizer_in_backward(x: Tensor) -> Any:
    model = _on(x, _model())
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        model(x).square().sum().backward()
        torch_xla.sync()
    return [p.detach() for p in model.parameters()]


def _saved_tensor_hooks(x: Tensor) -> Any:
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.detach()) or t * 1, lambda t: t):
        y = (x.sin() * x).sum()
    y.backward()
    return [x.grad, packed]


def _save_on_cpu(x: Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        y = (x.sin() * x).sum()
    y.backward()
    return x.grad


class Scale(torch.autograd.Function):
    """New style: forward without ctx, setup_context, vmap by hand, forward mode."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x * factor, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return g * ctx.factor, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, factor: float) -> Any:
        x = x.movedim(in_dims[0], 0)
        return (x * factor, x.flatten(1).sum(1)), (0, 0)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: Any) -> Any:
        return dx * ctx.factor, None


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        assert ctx.needs_input_grad == (True, False)
        return x.mul_(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y, None


def _dirty(x: Tensor) -> Any:
    y = x * 1
    out = AddInPlace.apply(y, x.detach() + 2)
    assert out is y and y._version == 2, "mul_, and mark_dirty"
    return [out.detach(), *_backward(x, out.sum())]


class Halved(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w / 2

    def right_inverse(self, w: Tensor) -> Tensor:
        return w * 2


def _parametrized(kind: Callable[[nn.Linear], Any]) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        kind(layer)
        layer.to(x.device)
        layer(x).square().sum().backward()
        grads = [p.grad for p in layer.parameters()]
        parametrize.remove_parametrizations(layer, "weight")
        return [*grads, layer.weight.detach()]

    return run


def _weight_norm_gradients(x: Tensor) -> Any:
    return _parametrized(parametrizations.weight_norm)(x)


def _pruned(x: Tensor) -> Any:
    from torch.nn.utils import prune

    layer = _on(x, _model())[0]
    prune.l1_unstructured(layer, "weight", amount=4)
    layer(x).sum().backward()
    return [layer.weight.detach(), layer.weight_orig.grad]


def _traced(x: Tensor) -> Any:
    module = torch.fx.symbolic_trace(_model())
    assert "tanh" in module.code or "_1" in module.code
    _on(x, module)(x).sum().backward()
    return x.grad


AUTOGRAD: dict[str, Callable[[Tensor], Any]] = {
    "gradient penalty": _gradient_penalty,
    "is_grads_batched": lambda x: _backward(
        x, x.sin(), grad_outputs=torch.ones(2, *x.shape, device=x.device), is_grads_batched=True
    ),
    "hessian by hand": lambda x: torch.autograd.functional.hessian(lambda v: v.pow(3).sum(), x),
    "vhp": lambda x: torch.autograd.functional.vhp(lambda v: v.pow(3).sum(), x, x),
    "jacobian forward mode": lambda x: torch.autograd.functional.jacobian(
        torch.sin, x, strategy="forward-mode", vectorize=True
    ),
    "checkpoint": _reentrant(False),
    "checkpoint reentrant": _reentrant(True),
    "checkpoint without state": _reentrant(False, preserve=False),
    "checkpoint sequential": _sequential,
    "module hooks": _module_hooks,
    "optimizer in backward": _optimizer_in_backward,
    "saved tensor hooks": _saved_tensor_hooks,
    "save_on_cpu": _save_on_cpu,
    "function": lambda x: [(out := Scale.apply(x, 2.5))[1], *_backward(x, out[0].sum())],
    "function under vmap": lambda x: vmap(lambda v: Scale.apply(v, 2.5))(x.detach()),
    "function under jvp": lambda x: jvp(lambda v: Scale.apply(v, 2.5)[0], (x.detach(),), (x.detach(),)),
    "function under grad": lambda x: vmap(grad(lambda v: Cube.apply(v).sum()))(x.detach()),
    "function twice": lambda x: _backward(x, _backward(x, Cube.apply(x).sum(), create_graph=True)[0].sum()),
    "function in place": _dirty,
    "parametrize": _parametrized(lambda m: parametrize.register_parametrization(m, "weight", Halved())),
    "weight_norm": _weight_norm_gradients,
    "spectral_norm": _parametrized(lambda m: parametrizations.spectral_norm(m)),
    "orthogonal": _parametrized(lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley")),
    "prune": _pruned,
    "symbolic_trace": _traced,
}


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(name: str) -> None:
    with counts() as moved:
        same(AUTOGRAD[name], torch.randn(4, 3, requires_grad=True), rtol=1e-4, atol=1e-5)
    assert moved.fallbacks == set()


def _dropout_twice(x: Tensor) -> Tensor:
    return nn.functional.dropout(nn.functional.dropout(x * 2, 0.3), 0.5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_drops_the_same_elements_again(reentrant: bool) -> None:
    x = torch.ones(200, device="xla", requires_grad=True)
    with counts() as moved:
        for _ in range(3):
            x.grad = None
            first = checkpoint(_dropout_twice, x, use_reentrant=reentrant)
            second = checkpoint(_dropout_twice, x.detach().requires_grad_(), use_reentrant=reentrant)
            after = torch.rand(4, device="xla")
            first.sum().backward()
            assert x.grad is not None
            torch_xla.sync()
    assert torch.equal(x.grad.cpu(), first.detach().cpu())
    assert not torch.equal(first.detach().cpu(), second.detach().cpu())
    assert not torch.equal(after.cpu(), torch.rand(4, device="xla").cpu()), "the stream goes on where it was"
    assert moved.compilations <= 2 and moved.fallbacks == set()


def test_checkpoint_may_do_without_the_state() -> None:
    x = torch.ones(200, device="xla", requires_grad=True)
    y = checkpoint(_dropout_twice, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal(x.grad.cpu(), y.detach().cpu())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_in_autocast(reentrant: bool) -> None:
    layer = nn.Linear(3, 3).to("xla")
    seen = []

    def run(v: Tensor) -> Tensor:
        seen.append(layer(v).dtype)
        return layer(v)

    x = torch.randn(2, 3, device="xla", requires_grad=True)
    with torch.autocast("xla", dtype=torch.float16):
        y = checkpoint(run, x, use_reentrant=reentrant)
    y.float().sum().backward()
    assert seen == [torch.float16] * 2
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_fork_rng() -> None:
    torch.manual_seed(7)
    before = torch.xla.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        torch.manual_seed(1)
        inside = torch.rand(3, device="xla").tolist()
    assert torch.equal(torch.xla.get_rng_state(), before)
    assert torch.rand(3, device="xla").tolist() != inside
