"""torch's control flow on xla tensors is one operation of the graph, with the results of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import associative_scan, while_loop
from torch._higher_order_ops import map as hop_map

import torch_xla
from tests.support.helpers import assert_same, counts, run_script, same, stablehlo
from torch_xla.experimental import fori_loop as loops
from torch_xla.experimental.scan import scan


def _gradients(results: Any, *inputs: Tensor) -> list[Tensor | None]:
    total = sum(t.pow(2).sum() for t in results)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def _filled(found: list[Tensor | None], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)]


def _branches(pred: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Any, Any]:
    """Nested results, tensors from outside that only one branch uses, an integer among the results."""

    def yes(a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"x": torch.sin(a) @ w, "n": (b > 0).sum()}

    def no(a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"x": torch.relu(a) * b, "n": torch.zeros((), dtype=torch.int64, device=a.device)}

    decide = torch.cond if a.device.type == "xla" else lambda pred, yes, no, args: (yes if pred else no)(*args)
    found = decide(pred, yes, no, (a, b))
    return found, _filled(_gradients([found["x"]], a, b, w), (a, b, w))


@pytest.mark.parametrize("pred", [True, False])
def test_cond_is_the_branch(pred: bool) -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(3, 3).requires_grad_() for _ in range(3)]
    with counts() as moved:
        same(_branches, torch.tensor(pred), *matrices, rtol=1e-4, atol=1e-5)
    assert not moved.fallbacks


def test_cond_is_one_program_for_both_branches() -> None:
    x = torch.randn(3).to("xla").requires_grad_()
    torch_xla.sync()
    with counts() as moved:
        for sign in (2, -2):  # operands; 1 and -1 would be constants
            y = torch.cond(x.sum() * sign > 0, torch.sin, torch.cos, (x,))
            g = torch.autograd.grad(y.sum(), x)
            torch_xla.sync()
    assert moved.compilations == 1 and not moved.fallbacks
    assert stablehlo()[-1].count("stablehlo.case") == 2
    chosen = torch.sin if x.sum().item() < 0 else torch.cos
    twin = x.detach().cpu().requires_grad_()
    assert_same([y, *g], [chosen(twin).detach(), *torch.autograd.grad(chosen(twin).sum(), twin)], 1e-4, 1e-5)


def test_cond_draws_in_the_branch_that_runs() -> None:
    x = torch.ones(512).to("xla").requires_grad_()
    y = torch.cond(x.sum() > 0, lambda a: F.dropout(a, 0.5), lambda a: a * 1.0, (x,))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_same(gradient, y.detach().cpu())
    assert 0.3 < (y == 0).float().mean().item() < 0.7


def test_cond_below_autocast_and_compile() -> None:
    x = torch.randn(4, 4).to("xla")
    with torch.autocast("xla", torch.bfloat16):
        found = torch.cond(x.sum() > 100, lambda a: a @ a, lambda a: (a @ a) * 2, (x,))
    assert found.dtype == torch.bfloat16
    compiled = torch.compile(
        lambda p, a: torch.cond(p, lambda a: a.sin(), lambda a: a.cos(), (a,)) + 1, backend="eager"
    )
    assert_same(compiled(x.sum() > 1e6, x), x.cpu().cos() + 1, rtol=1e-4, atol=1e-5)


def test_a_number_decides_at_once() -> None:
    x = torch.ones(2).to("xla")
    assert_same(torch.cond(True, lambda a: a + 1, lambda a: a - 1, (x,)), torch.full((2,), 2.0))


def _counted(limit: Tensor, x: Tensor, w: Tensor) -> Any:
    def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(x @ w) + i

    with torch.no_grad():
        if x.device.type == "xla":
            return while_loop(lambda i, x: i < limit, step, (torch.zeros_like(limit), x))
        i = torch.zeros_like(limit)
        while i < limit:
            i, x = step(i, x)
    return i, x


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_while_loop_is_the_loop(limit: int) -> None:
    torch.manual_seed(0)
    with counts() as moved:
        same(_counted, torch.tensor(limit), torch.randn(3, 3), torch.randn(3, 3), rtol=1e-4, atol=1e-5)
    assert moved.executions <= 3 and not moved.fallbacks


def test_while_loop_may_write_to_the_carry() -> None:
    start = torch.zeros((), device="xla"), torch.ones(3, device="xla")
    body = lambda n, x: (n.add_(1), x.mul_(2))
    n, x = loops.while_loop(lambda n, x: n < 3, body, start)
    assert (n.item(), x.tolist()) == (3.0, [8.0] * 3)
    assert (start[0].item(), start[1].tolist()) == (0.0, [1.0] * 3)
    with pytest.raises(RuntimeError, match="writes to its argument 0 in place"):
        loops.while_loop(lambda n, x: n.add_(1) < 3, body, start)
    with pytest.raises(RuntimeError, match="writes to its argument 1 in place"):
        loops.while_loop(lambda n, x: n < 3, lambda n, x: (n + x.add_(1),), start[:1], start[:1])
    _, _, total = loops.fori_loop(0, 4, lambda x: x.add_(1), start[0])
    assert total.item() == 4.0


def test_while_loop_with_additional_inputs_and_random_numbers() -> None:
    x, w = torch.zeros(64).to("xla"), torch.full((64,), 2.0).to("xla")
    i = torch.tensor(0).to("xla")
    _, drawn = loops.while_loop(lambda i, x, w: i < 3, lambda i, x, w: (i + 1, x + w * F.dropout(w, 0.5)), (i, x), (w,))
    assert len(drawn.cpu().unique()) > 2  # with equal numbers in all steps: 0 and 24
    assert set(drawn.tolist()) <= {0.0, 8.0, 16.0, 24.0}


def test_fori_loop() -> None:
    def run(x: Tensor, w: Tensor) -> Any:
        step = lambda x: torch.tanh(x * w)
        if x.device.type == "xla":
            last, upper, y = loops.fori_loop(2, 6, step, x)
            assert (last, upper) == (6, 6)
        else:
            y = x
            for _ in range(4):
                y = step(y)
        return y, _gradients([y], x, w)

    same(run, torch.randn(3).requires_grad_(), torch.randn(3).requires_grad_(), rtol=1e-4, atol=1e-5)
    one = torch.tensor(1).to("xla")
    assert_same(loops.fori_loop(one, one + 50, lambda x: x + 1, one), tuple(torch.tensor(n) for n in (51, 51, 51)))
    assert_same(loops.fori_loop(5, 2, lambda x: x + 1, one)[2], torch.tensor(1))


def _mapped(x: Tensor, y: Tensor, w: Tensor) -> Any:
    def step(item: dict[str, Tensor], y: Tensor) -> dict[str, Tensor]:
        return {"a": torch.sin(item["x"]) @ w, "b": item["x"] * y}

    if x.device.type == "xla":
        found = hop_map(step, {"x": x}, y)
    else:
        steps = [step({"x": row}, y) for row in x]
        found = {name: torch.stack([s[name] for s in steps]) for name in "ab"}
    return found, _gradients(list(found.values()), x, y, w)


def test_map_is_each_slice() -> None:
    torch.manual_seed(0)
    shapes = (4, 3), (3,), (3, 3)
    same(_mapped, *(torch.randn(s).requires_grad_() for s in shapes), rtol=1e-4, atol=1e-5)


def _affine(a: Tensor, b: Tensor, reverse: bool, mode: str) -> Any:
    """x -> a x + b, composed."""

    def combine(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return one[0] * other[0], one[1] * other[0] + other[1]

    if a.device.type == "xla":
        found = associative_scan(combine, (a, b), 1, reverse=reverse, combine_mode=mode)
    else:
        columns = list(zip(a.unbind(1), b.unbind(1), strict=True))[:: -1 if reverse else 1]
        outs = [columns[0]]
        for column in columns[1:]:
            outs.append(combine(outs[-1], column))
        outs = outs[:: -1 if reverse else 1]
        found = tuple(torch.stack(part, 1) for part in zip(*outs, strict=True))
    return found, _gradients(found, a, b)


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_is_the_running_combination(reverse: bool, mode: str) -> None:
    torch.manual_seed(0)
    a, b = (torch.rand(2, 7).requires_grad_() for _ in range(2))
    same(lambda a, b: _affine(a, b, reverse, mode), a, b, rtol=1e-4, atol=1e-5)


def test_torchs_own_scan() -> None:
    from torch._higher_order_ops import scan as hop_scan

    x = torch.rand(5, 3)
    found = hop_scan(lambda c, a: (c + a, c * a), torch.zeros(3).to("xla"), x.to("xla"), dim=0)
    sums = x.cumsum(0)
    assert_same(found, (sums[-1], (sums - x) * x), rtol=1e-4, atol=1e-5)


def test_control_flow_within_a_scan() -> None:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if c.device.type == "xla":
            c = torch.cond(x.sum() > 0, lambda c: torch.sin(c) + x, lambda c: c * x, (c,))
            with torch.no_grad():
                i, n = while_loop(
                    lambda i, n: n < 4, lambda i, n: (i + 1, n * 2), (c.sum().detach() * 0, x.exp().sum())
                )
        else:
            c = torch.sin(c) + x if x.sum() > 0 else c * x
            i, n = 0, x.exp().sum()
            while n < 4:
                i, n = i + 1, n * 2
        return c, n.detach()

    def run(c: Tensor, x: Tensor) -> Any:
        if c.device.type == "xla":
            c_out, ys = scan(step, c, x)
        else:
            c_out, ys = c, []
            for item in x:
                c_out, y = step(c_out, item)
                ys.append(y)
            ys = torch.stack(ys)
        return (c_out, ys), _gradients([c_out], c, x)

    torch.manual_seed(0)
    same(run, torch.randn(3).requires_grad_(), torch.randn(5, 3).requires_grad_(), rtol=1e-4, atol=1e-5)


def test_rejected() -> None:
    x = torch.ones(3).to("xla")
    yes = torch.tensor(True).to("xla")
    differ = "true_fn returns .*3.*false_fn returns .*1" if torch.__version__ >= (2, 13) else "."  # dynamo's message
    rejected: list[tuple[Callable[[], Any], str]] = [
        (lambda: torch.cond(yes, lambda a: a, lambda a: a[:1], (x,)), differ),
        (lambda: loops.while_loop(lambda a: a.sum() < 9, lambda a: (a.double(),), (x,)), "got .*float32.*float64"),
        (
            lambda: loops.while_loop(lambda a: a < 9, lambda a: (a + 1,), (x,)),
            "cond_fn must return a tensor with one element",
        ),
        (lambda: associative_scan(lambda a, b: (a + b).long(), x, 0), r"combine_fn to return \[float32\[\]\]"),
    ]
    if torch.__version__ >= (2, 13):  # before, dynamo traces the branches, and the program raises at the next sync
        reads = (lambda: torch.cond(yes, lambda a: a + a.sum().item(), lambda a: a, (x,)), "needs a tensor value")
        rejected.append(reads)
    for call, message in rejected:
        with pytest.raises(RuntimeError, match=message):
            call()
    graded = torch.ones(3).to("xla").requires_grad_()
    (out,) = loops.while_loop(lambda a: a.sum() < 9, lambda a: (a * 2,), (graded,))
    assert_same(out.detach(), torch.full((3,), 4.0))
    with pytest.raises(RuntimeError, match="while_loop has no gradient on xla"):
        out.sum().backward()


SPREAD = """
import torch, torch_xla, torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch._higher_order_ops import associative_scan
from torch_xla.experimental.fori_loop import while_loop

xr.use_spmd()
mesh = xs.Mesh(range(4), (4,), ("data",))
torch.manual_seed(0)
x, w = torch.randn(8, 4), torch.randn(4, 4)
a, b = x.to("xla").requires_grad_(), w.to("xla").requires_grad_()
xs.mark_sharding(a, mesh, ("data", None))
y = torch.cond(a.sum() > 1e6, lambda a: a @ b, lambda a: torch.tanh(a @ b), (a,))
grads = torch.autograd.grad(y.pow(2).sum(), (a, b))
c, d = x.clone().requires_grad_(), w.clone().requires_grad_()
z = torch.tanh(c @ d)
for found, wanted in zip((y, *grads), (z, *torch.autograd.grad(z.pow(2).sum(), (c, d))), strict=True):
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
i, t = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, torch.tanh(t @ b)), (torch.tensor(0).to("xla"), a.detach()))
for _ in range(3):
    x = torch.tanh(x @ w)
torch.testing.assert_close(t.detach().cpu(), x, rtol=1e-4, atol=1e-5)
sums = associative_scan(torch.add, a, 0)
torch.testing.assert_close(sums.cpu(), c.cumsum(0), rtol=1e-4, atol=1e-5)
print("done")
"""


def test_over_four_devices() -> None:
    done = run_script(SPREAD, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
