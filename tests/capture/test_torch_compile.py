"""torch.compile accepts modules and tensors on xla like others, with every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import assert_same, counts
from torch_xla._engine.recorder import source_info

pytestmark = [
    # A mask as an index has no fixed shape: one of the functions below goes to the CPU on purpose.
    # dynamo (torch 2.13) looks at .grad of what a traced graph gave to the one after it, on every device.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
    # Importing inductor (torch 2.13) defines script methods, which torch warns of.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch_xla. x.mask. at :UserWarning"),
]


@pytest.fixture(autouse=True)
def nothing_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.table = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean((2, 3))
        return self.head(x + self.table(x.argmax(1)) + torch.arange(4.0, device=x.device)).log_softmax(-1)


class Writing(nn.Module):
    """Views, copies that only strides require, writes, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        y = x.t().contiguous()
        y[0].mul_(2)
        z = x.clone()
        z[:, 1] = 0
        z.view(-1)[2:4] += 1
        a, b = (z @ self.weight).chunk(2, 1)
        return torch.cat([a.transpose(0, 1).reshape(-1), b.flatten(), y.flatten(), self.calls])


class Reading(nn.Module):
    """A branch and a number that Python reads: graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum() > 0:
            y = y * 2
        return y + y.mean().item()


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * 2, (x,))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutional": (Convolutional, (2, 3, 8, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "lstm": (lambda: nn.LSTM(8, 6, batch_first=True), (2, 5, 8)),
    "writing": (Writing, (4, 4)),
    "reading": (Reading, (3, 4)),
    "branching": (Branching, (3, 4)),
}


def _pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    cpu, xla = make(), make()
    xla.load_state_dict(cpu.state_dict())
    return cpu, xla.to("xla")


def _step(run: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Return the outputs after the gradient of their sum."""
    out = run(x)
    sum(t.square().sum() for t in pytree.tree_leaves(out) if t.requires_grad).backward()
    return out


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in MODULES), ("writing", "eager"), ("reading", "eager"),
     ("convolutional", "aot_eager_decomp_partition")],
)  # fmt: skip
def test_compiled_module(name: str, backend: str) -> None:
    make, shape = MODULES[name]
    cpu, xla = _pair(make)
    compiled = torch.compile(xla, backend=backend)
    for more in range(2):  # the second batch is of another size, which is a symbol from then on
        batch = shape[0] + (more if name != "writing" else 0)
        x = torch.randn(batch, *shape[1:])
        y = x.to("xla")
        expected, got = _step(cpu, x), _step(compiled, y)
        assert_same(pytree.tree_map(Tensor.detach, got), pytree.tree_map(Tensor.detach, expected), 1e-4, 1e-5)
    for (_, mine), (_, theirs) in zip(xla.named_parameters(), cpu.named_parameters(), strict=True):
        assert theirs.grad is not None
        assert_same(mine.grad, theirs.grad, 1e-3, 1e-4)
    assert_same(list(xla.buffers()), list(cpu.buffers()), 1e-4, 1e-5)


def _heads(x: Tensor) -> Tensor:
    q = x.reshape(2, 4, -1, 4)
    return F.scaled_dot_product_attention(q, q[:, :2], q[:, 2:], enable_gqa=True)


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y[y > 0.5] = 0
    return y


def _autocast(x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return (x @ x.t()).float()


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "products": (lambda x: (x.prod(), x.prod(1), x.cumprod(0)), (3, 4)),
    "maximum": (lambda x: x.max() * x.min(), (3, 4)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (2, 4, 5, 4)),
    "grouped attention": (_heads, (2, 4, 5, 4)),
    "mask as index": (lambda x: x[x > 0].sum(), (3, 4)),
    "expanded": (lambda x: x[:, :1].expand(-1, 7).contiguous() * 2, (3, 4)),
    "write to a view": (lambda x: torch.zeros_like(x).copy_(x).t()[1:].mul_(2).sum(0), (4, 4)),
    "assignments": (_assigned, (4, 4)),
    "random": (lambda x: (torch.rand_like(x) * 0 + F.dropout(x, 0.0)).sum(), (4, 4)),
    "sort": (lambda x: x.sort(-1)[0].cumsum(0).topk(2)[0], (4, 4)),
    "linalg": (lambda x: torch.linalg.inv(x @ x.T + 4 * torch.eye(x.shape[0], device=x.device)), (4, 4)),
    "ctc": (lambda x: F.ctc_loss(x.log_softmax(-1), torch.ones(2, 2, dtype=torch.int64, device=x.device), (4, 4),
                                 (2, 1)), (4, 2, 5)),
    "autocast": (_autocast, (4, 4)),
    "checkpoint": (lambda x: checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False), (4, 4)),
    "vmap and grad": (lambda x: torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(x), (4, 4)),
    "to the CPU": (lambda x: x.cpu().sum() + 1, (4, 4)),
    "from the CPU": (lambda x: torch.ones(4, 4).to(x.device) * x, (4, 4)),
    "seeded": (lambda x: (torch.manual_seed(0), x * 2)[1], (4, 4)),
}  # fmt: skip


@pytest.mark.parametrize(("backend", "dynamic"), [("eager", False), ("aot_eager", True)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_function(name: str, backend: str, dynamic: bool) -> None:
    function, shape = FUNCTIONS[name]
    x = torch.randn(shape, requires_grad=True)
    y = x.detach().to("xla").requires_grad_()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    loose = 1e-1 if name == "autocast" else 1e-4
    got, expected = pytree.tree_leaves(_step(compiled, y)), pytree.tree_leaves(_step(function, x))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=loose, atol=loose)
    assert y.grad is not None and x.grad is not None
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=loose, atol=loose)


def test_a_barrier_in_a_compiled_function_ends_its_graph() -> None:
    def function(x: Tensor) -> Tensor:
        there, here = xm.xla_device(), torch_xla.device()
        y = x.to(there) * 2
        torch_xla.sync()
        z = y + torch.ones(3, device=here)
        xm.mark_step()
        return z.sum()

    x = torch.ones(3, device="xla")
    with counts() as moved:
        assert torch.compile(function, backend="eager")(x).item() == 9
    assert moved["MarkStep"] == 2


def test_a_compiled_step_trains() -> None:
    cpu, xla = _pair(lambda: nn.Linear(3, 3))
    mine, theirs = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (xla, cpu))

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(step, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(4, 3)
        expected, got = step(cpu, theirs, x), compiled(xla, mine, x.to("xla"))
        torch_xla.sync()
        assert_same(got, expected)


def test_compiled_while_modules_are_followed() -> None:
    """Global hooks record which module runs; torch.compile must not trace into them."""
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to("xla")
    source_info.set_capture(True)
    try:
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2, 3, device="xla")).shape == (2, 3)
    finally:
        source_info.set_capture(False)


@pytest.mark.parametrize("how", [{}, {"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"dynamic": True}], ids=str)
def test_the_default_backend_compiles_graphs_on_xla(how: dict[str, Any]) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    expected = module(torch.ones(5, 3)).detach(), module(torch.ones(7, 3)).detach()
    compiled = torch.compile(module.to("xla"), **how)
    with counts() as moved:
        for size, result in zip((5, 7), expected, strict=True):
            assert_same(compiled(torch.ones(size, 3, device="xla")), result)
            assert_same(compiled(torch.ones(size, 3, device="xla")), result)
    assert not moved["DynamoRunAsItIs"] and not moved.fallbacks
    compiled(torch.ones(5, 3, device="xla")).sum().backward()
    assert module[0].weight.grad is not None and module[0].weight.grad.device.type == "xla"


def test_the_default_backend_compiles_functions_that_create_xla_tensors() -> None:
    function = torch.compile(lambda x: torch.ones(2, device="xla") + 1)
    assert function(torch.ones(3)).tolist() == [2.0, 2.0]


def test_the_default_backend_of_cpu_graphs_is_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def compile_fx(graph: Any, inputs: Any, **_: Any) -> Any:
        seen.append(inputs)
        return graph

    from torch._inductor import compile_fx as inductor

    monkeypatch.setattr(inductor, "compile_fx", compile_fx)
    assert torch.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(seen) == 1 and seen[0][0].device.type == "cpu"
