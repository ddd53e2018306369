"""Mixed precision: dtypes against torch's lists, values against explicit casts on the CPU, no host reads."""

from __future__ import annotations

import pickle
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_xla
from tests.support.helpers import READING, Counts, assert_same, counts, run_script
from torch_xla import amp
from torch_xla._engine import recorder

LOWER, FLOAT, SAME = "lower", "float32", "as given"

# Policy of CUDA in torch's op reference: x and y are 4x4 float32, h is 4x4 of the region's dtype.
POLICIES: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "matmul": (LOWER, lambda x, y, h: x @ y),
    "matmul mixed": (LOWER, lambda x, y, h: x @ h),
    "mm": (LOWER, lambda x, y, h: torch.mm(x, y)),
    "mv": (LOWER, lambda x, y, h: torch.mv(x, y[0])),
    "bmm": (LOWER, lambda x, y, h: torch.bmm(x[None], h[None])),
    "addmm": (LOWER, lambda x, y, h: torch.addmm(x, y, h)),
    "baddbmm": (LOWER, lambda x, y, h: torch.baddbmm(x[None], y[None], h[None])),
    "linear": (LOWER, lambda x, y, h: F.linear(x, y, x[0])),
    "einsum": (LOWER, lambda x, y, h: torch.einsum("ij,kj->ik", x, h)),
    "multi_dot": (LOWER, lambda x, y, h: torch.linalg.multi_dot([x, y, h])),
    "conv1d": (LOWER, lambda x, y, h: F.conv1d(x[None], y[:, :, None])),
    "conv2d": (LOWER, lambda x, y, h: F.conv2d(x[None, None], y[None, None, :2, :2])),
    "conv_transpose2d": (LOWER, lambda x, y, h: F.conv_transpose2d(x[None, None], y[None, None, :2, :2])),
    "prelu": (LOWER, lambda x, y, h: F.prelu(x, y[0])),
    "attention": (LOWER, lambda x, y, h: F.scaled_dot_product_attention(x[None], y[None], h[None])),
    "softmax": (FLOAT, lambda x, y, h: h.softmax(-1)),
    "log_softmax": (FLOAT, lambda x, y, h: F.log_softmax(h, -1)),
    "exp": (FLOAT, lambda x, y, h: h.exp()),
    "log": (FLOAT, lambda x, y, h: h.abs().log()),
    "pow": (FLOAT, lambda x, y, h: h.pow(2)),
    "pow tensors": (FLOAT, lambda x, y, h: h.abs().pow(x)),
    "rsqrt": (FLOAT, lambda x, y, h: h.abs().rsqrt()),
    "cumsum": (FLOAT, lambda x, y, h: h.cumsum(0)),
    "prod": (FLOAT, lambda x, y, h: h.prod(1)),
    "sum": (FLOAT, lambda x, y, h: h.sum()),
    "sum of a dim": (FLOAT, lambda x, y, h: h.sum(0)),
    "norm": (FLOAT, lambda x, y, h: torch.norm(h)),
    "norm of a dim": (FLOAT, lambda x, y, h: torch.norm(h, dim=1)),
    "vector_norm": (FLOAT, lambda x, y, h: torch.linalg.vector_norm(h)),
    "layer_norm": (FLOAT, lambda x, y, h: F.layer_norm(h, (4,), x[0], y[0])),
    "group_norm": (FLOAT, lambda x, y, h: F.group_norm(h, 2)),
    "rms_norm": (FLOAT if torch.__version__ >= (2, 12) else LOWER, lambda x, y, h: F.rms_norm(h, (4,))),
    "mse_loss": (FLOAT, lambda x, y, h: F.mse_loss(h, x)),
    "l1_loss": (FLOAT, lambda x, y, h: F.l1_loss(h, h.flip(0))),
    "cross_entropy": (FLOAT, lambda x, y, h: F.cross_entropy(h, torch.arange(4, device=h.device))),
    "bce with logits": (FLOAT, lambda x, y, h: F.binary_cross_entropy_with_logits(h, x.sigmoid())),
    "cosine_similarity": (FLOAT, lambda x, y, h: F.cosine_similarity(h, x)),
    "cdist": (FLOAT, lambda x, y, h: torch.cdist(h, x)),
    "interpolate": (FLOAT, lambda x, y, h: F.interpolate(h[None, None], scale_factor=2.0, mode="bilinear")),
    "addcmul": (FLOAT, lambda x, y, h: torch.addcmul(x, h, h)),
    "addcmul lower": (LOWER, lambda x, y, h: torch.addcmul(h, h, h)),
    "atan2": (FLOAT, lambda x, y, h: torch.atan2(h, x)),
    "dot": (FLOAT, lambda x, y, h: torch.dot(h[0], x[0])),
    "scatter_add": (FLOAT, lambda x, y, h: x.scatter_add(0, torch.zeros_like(x, dtype=torch.long), h)),
    "index_put": (FLOAT, lambda x, y, h: torch.index_put(h, (torch.tensor([1], device=x.device),), x[0])),
    "cat": (FLOAT, lambda x, y, h: torch.cat([h, x])),
    "stack": (FLOAT, lambda x, y, h: torch.stack([x, h])),
    "cat lower": (LOWER, lambda x, y, h: torch.cat([h, h])),
    "add": (FLOAT, lambda x, y, h: x + h),
    "relu": (LOWER, lambda x, y, h: h.relu()),
    "gelu": (FLOAT, lambda x, y, h: F.gelu(x)),
    "max_pool": (LOWER, lambda x, y, h: F.max_pool2d(h[None, None], 2)),
    "dropout": (LOWER, lambda x, y, h: F.dropout(h, 0.0)),
}
NOT_LISTED = {"cat", "stack", "cat lower", "add", "relu", "gelu", "max_pool", "dropout"}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, y, h = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4).to(dtype)
    return x, y, h


# The lists do not depend on the region's dtype: for float16 one op per list is enough.
_CASES = [(name, "bfloat16") for name in POLICIES] + [
    (name, "float16") for name in ("matmul mixed", "softmax", "exp", "norm", "addcmul", "addcmul lower", "relu")
]


@pytest.mark.parametrize(("name", "dtype"), _CASES)
def test_policy(name: str, dtype: str) -> None:
    """Dtype by the table; value and gradients equal those of the CPU with explicit casts."""
    lower = DTYPES[dtype]
    policy, function = POLICIES[name]
    want = lower if policy == LOWER else torch.float32
    raw = _inputs(lower)
    leaves = [t.to("xla").requires_grad_() for t in raw]
    with counts() as moved:
        with torch.autocast("xla", dtype=lower):
            got = function(*leaves)
        assert got.dtype == want
        got.float().sum().backward()
        torch_xla.sync()
    assert moved.fallbacks == set()
    copies = [t.clone().requires_grad_() for t in raw]
    cast = copies if name in NOT_LISTED else [t.to(want) for t in copies]
    expected = function(*cast)
    expected.float().sum().backward()
    tight = want == torch.float32
    close = {"rtol": 1e-4, "atol": 1e-5} if tight else {"rtol": 0.02, "atol": 0.02}
    assert_same(got.detach(), expected.detach().to(want), **close)
    for leaf, copy in zip(leaves, copies, strict=True):
        assert (leaf.grad is None) == (copy.grad is None)
        if copy.grad is not None and leaf.grad is not None:
            assert leaf.grad.dtype == leaf.dtype
            loose = {"rtol": 0.02, "atol": 0.05} if leaf.dtype != torch.float32 or not tight else close
            assert_same(leaf.grad, copy.grad, **loose)


def test_autocast_ignores_double_and_integers() -> None:
    x = torch.ones(2, 2, device="xla")
    with torch.autocast("xla"):
        assert (x.double() @ x.double()).dtype == torch.float64
        assert x.double().exp().dtype == torch.float64
        assert torch.cat([x.double(), x]).dtype == torch.float64
        assert x.long().sum().dtype == torch.int64
        assert x.long().cumsum(0).dtype == torch.int64
        assert x.sum(dtype=torch.float16).dtype == torch.float16, "an explicit dtype has priority"
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32, "the CPU has a separate autocast state"


def test_region() -> None:
    x = torch.ones(2, 2, device="xla")
    assert not torch.is_autocast_enabled("xla")
    with torch.autocast("xla"):
        assert torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla") == torch.bfloat16
        with torch.autocast("xla", enabled=False):
            assert not torch.is_autocast_enabled("xla")
            assert (x @ x).dtype == torch.float32
        with torch.autocast("xla", dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("xla")
    assert (x @ x).dtype == torch.float32


REGIONS: dict[str, Callable[[], amp.autocast]] = {
    "device": lambda: amp.autocast(torch.device("xla")),
    "ordinal": lambda: amp.autocast("xla:0", dtype=torch.bfloat16),
    "nothing": amp.autocast,
    "enabled, as it was before 2.1": lambda: amp.autocast(True, dtype=torch.bfloat16),
    "keywords": lambda: amp.autocast(device=torch.device("xla:0"), enabled=True, cache_enabled=False),
}


@pytest.mark.parametrize("name", REGIONS)
def test_amp_autocast(name: str) -> None:
    x = torch.ones(2, 2, device="xla")
    with REGIONS[name]():
        assert (x @ x).dtype == torch.bfloat16
    assert REGIONS[name]()(lambda: x @ x)().dtype == torch.bfloat16, "as a decorator"


def test_amp_autocast_disabled_and_other_devices() -> None:
    x = torch.ones(2, 2, device="xla")
    for region in (amp.autocast("xla", enabled=False), amp.autocast(False)):
        with region:
            assert (x @ x).dtype == torch.float32
    with amp.autocast("xla", dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    with pytest.raises(ValueError, match=r"torch_xla.amp.autocast: expected an xla device, got cpu"):
        amp.autocast("cpu")


def test_binary_cross_entropy() -> None:
    p, target = torch.tensor([0.2, 0.7]), torch.tensor([0.0, 1.0])
    with torch.autocast("xla", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast to float16"):
        F.binary_cross_entropy(p.to("xla"), target.to("xla"))
    with torch.autocast("xla"):
        got = F.binary_cross_entropy(p.to("xla").bfloat16(), target.to("xla").bfloat16())
    assert_same(got, F.binary_cross_entropy(p.bfloat16().float(), target))


def test_weights_are_cast_once_per_region() -> None:
    weight = torch.randn(4, 4, device="xla", requires_grad=True)
    x = torch.randn(4, 4, device="xla", dtype=torch.bfloat16)
    torch_xla.sync()
    module = recorder.bindings()
    live = module.live_tensor_count(0)

    def casts(**options: Any) -> int:
        with counts() as moved, torch.autocast("xla", **options):
            for _ in range(3):
                F.linear(x, weight)
        return moved["xla::convert_element_type"]

    assert casts() == 1
    assert module.live_tensor_count(0) == live, "the casts are freed with the region"
    assert casts(cache_enabled=False) == 3
    with torch.autocast("xla"):
        y = F.linear(x, weight) + F.linear(x, weight)
        assert y.grad_fn is not None
    y.float().sum().backward()
    expected = 2 * x.float().sum(0).expand(4, 4)
    assert_same(weight.grad, expected.cpu(), rtol=0.02, atol=0.02)


def test_custom_function() -> None:
    seen: dict[str, torch.dtype] = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            seen["inputs"], seen["inside"] = x.dtype, (x @ y).dtype
            return x @ y

        @staticmethod
        @torch.amp.custom_bwd(device_type="xla")
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            seen["backward"] = (grad @ y.t()).dtype
            return grad @ y.t(), x.t() @ grad

    x = torch.randn(3, 3, device="xla", requires_grad=True)
    with torch.autocast("xla", dtype=torch.float16):
        h = x @ x
        y = Product.apply(h, x)
    assert h.dtype == torch.float16 and y.dtype == torch.float32
    y.sum().backward()
    assert seen == dict.fromkeys(("inputs", "inside", "backward"), torch.float32)
    assert x.grad is not None and x.grad.dtype == torch.float32


class Net(nn.Module):
    """Ops of all lists; `dtypes` records the dtype that each part returned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.project, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru, self.head = nn.GRUCell(8, 6), nn.Linear(6, 3)
        self.dtypes: dict[str, torch.dtype] = {}
        for name, part in self.named_children():
            part.register_forward_hook(lambda _m, _i, out, name=name: self._note(name, out))

    def _note(self, name: str, out: Any) -> None:
        self.dtypes[name] = (out[0] if isinstance(out, tuple) else out).dtype

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn(self.conv(x)).relu().flatten(2).transpose(1, 2)
        h = self.norm(self.project(h))
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.gru(h.mean(1)))


# By torch's lists for CUDA.
OUTPUTS = {"conv": LOWER, "bn": LOWER, "project": LOWER, "norm": FLOAT, "attention": LOWER, "gru": LOWER,
           "head": LOWER}  # fmt: skip


def _train(device: str, dtype: torch.dtype, scaler: torch.amp.GradScaler | None) -> tuple[list[float], Net]:
    torch.manual_seed(1)
    net = Net()
    data, labels = torch.randn(4, 6, 1, 4, 4), torch.randint(3, (4, 6))
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, label in zip([x.to(device) for x in data], [y.to(device) for y in labels], strict=True):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = F.cross_entropy(net(x), label)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch_xla.sync()
        losses.append(loss.detach())
    return [float(loss) for loss in losses], net


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_matches_cpu(dtype: str) -> None:
    lower = DTYPES[dtype]
    scaled = lower == torch.float16
    with counts() as moved:
        losses, net = _train("xla", lower, amp.GradScaler(2.0**10) if scaled else None)
    assert net.dtypes == {name: lower if policy == LOWER else torch.float32 for name, policy in OUTPUTS.items()}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert moved.fallbacks == set() and moved.compilations <= 3
    expected, _ = _train("cpu", lower, torch.amp.GradScaler("cpu", 2.0**10) if scaled else None)
    assert losses == pytest.approx(expected, abs=0.03)


AMP_OPS: dict[str, Callable[[list[Tensor], Tensor, Tensor], Any]] = {
    "in place": lambda g, f, s: torch._amp_foreach_non_finite_check_and_unscale_(g, f, s) or (*g, f),
    "functional": torch.ops.aten._amp_foreach_non_finite_check_and_unscale,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [None, float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("form", AMP_OPS)
def test_unscale(form: str, bad: float | None, dtype: torch.dtype) -> None:
    values = [torch.randn(3, 2), torch.randn(()), torch.randn(0), torch.randn(5)]
    if bad is not None:
        values[0][1, 1] = bad
    results = []
    for device in ("cpu", "xla"):
        grads = [v.clone().to(dtype).to(device) for v in values]
        with counts() as moved:
            results.append(AMP_OPS[form](grads, torch.zeros((), device=device), torch.tensor(1 / 3).to(device)))
        assert moved.fallbacks == set()
    assert_same(results[1], results[0])
    assert results[0][-1].item() == (bad is not None)


def test_unscale_accumulates_found_inf_and_writes_through_views() -> None:
    base = torch.ones(2, 3, device="xla")
    found = torch.ones(1, device="xla")
    torch._amp_foreach_non_finite_check_and_unscale_([base[0]], found, torch.tensor([0.5], device="xla"))
    assert base.tolist() == [[0.5] * 3, [1.0] * 3] and found.tolist() == [1.0]
    with pytest.raises(RuntimeError, match="inv_scale must be a 1-element tensor"):
        torch._amp_foreach_non_finite_check_and_unscale_([base], found, torch.ones(2, device="xla"))


def test_update_scale() -> None:
    found = [0, 0, 0, 1, 0, 2, 0, 0]
    seen = []
    for device in ("cpu", "xla"):
        scale, tracker = torch.tensor(4.0).to(device), torch.tensor(0, dtype=torch.int32).to(device)
        rows = []
        for f in found:
            result = torch._amp_update_scale_(scale, tracker, torch.tensor(float(f)).to(device), 2.0, 0.25, 2)
            assert result is scale
            rows.append((scale.clone(), tracker.clone()))
        huge = torch.tensor(3e38).to(device)
        rows.append((torch._amp_update_scale_(huge, tracker, torch.zeros(()).to(device), 2.0, 0.5, 1), tracker))
        rows.append(torch.ops.aten._amp_update_scale(scale, tracker, torch.ones(()).to(device), 2.0, 0.5, 1))
        seen.append(rows)
    assert_same(seen[1], seen[0])


Make = Callable[..., torch.optim.Optimizer]
# torch's optimizer for the CPU and its options; with "free" torch_xla.amp.syncfree has one of the same name.
OPTIMIZERS: dict[str, tuple[Make, dict[str, Any], str]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}, "free device"),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, "free device"),
    "SGD nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "free device"),
    "SGD dampening": (
        torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}, "free device first"),
    "Adam": (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}, "free host"),
    "Adam capturable": (torch.optim.Adam, {"lr": 0.1, "capturable": True}, "device"),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}, "free host"),
    # Its first step is ten times lr for any gradient: 1 at 0.1, and later steps amplify rounding differences.
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True, "capturable": True}, "device"),
    "NAdam": (torch.optim.NAdam, {"lr": 0.1, "capturable": True}, "device first"),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}, "host"),
}  # fmt: skip
STEPS, OVERFLOWS = 8, (0, 4)
SCALER = {"init_scale": 256.0, "growth_interval": 3}


def _loop(
    device: str, optimizer: Callable[[Any], torch.optim.Optimizer], scaler: torch.amp.GradScaler
) -> tuple[list[Tensor], list[Tensor], Counts]:
    """Parameters and scale after each step, with overflows in some; counts of the steps after the third."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    data = torch.randn(STEPS, 5, 4)
    for i in OVERFLOWS:
        data[i, 0, 0] = float("inf")
    model.to(device)
    used = optimizer(model.parameters())
    trace, scales = [], []

    def step(x: Tensor) -> None:
        used.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(used)
        scaler.update()
        torch_xla.sync()
        trace.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert scaler._scale is not None
        scales.append(scaler._scale.clone())
        torch_xla.sync()

    inputs = [x.to(device) for x in data]
    for x in inputs[:3]:
        step(x)
    with counts() as moved:
        for x in inputs[3:]:
            step(x)
    return trace, scales, moved


def _options(name: str) -> dict[str, Any]:
    return OPTIMIZERS[name][1]


def _cases() -> list[Any]:
    cases = []
    for name, (_, _, traits) in OPTIMIZERS.items():
        cases += [pytest.param(name, "plain", True, id=f"{name}-torch_xla's scaler")]
        if "free" in traits:
            cases += [
                pytest.param(name, "free", xla_scaler, id=f"{name}-syncfree-{xla_scaler}")
                for xla_scaler in (True, False)
            ]
    return [*cases, pytest.param("SGD momentum", "plain", False, id="SGD momentum-torch's scaler")]


@pytest.mark.filterwarnings("ignore:torch_xla.amp.GradScaler. .* has state outside the device")
@pytest.mark.parametrize(("name", "kind", "xla_scaler"), _cases())
def test_scaled_steps_match_cpu(name: str, kind: str, xla_scaler: bool) -> None:
    """An overflow skips the step and halves the scale; three finite steps double it; no value is read."""
    make, options, traits = OPTIMIZERS[name]
    free = {"SGD": amp.syncfree.SGD, "Adam": amp.syncfree.Adam, "AdamW": amp.syncfree.AdamW}
    used: Make = free[name.split()[0]] if kind == "free" else make
    scaler = amp.GradScaler(**SCALER) if xla_scaler else torch.amp.GradScaler("xla", **SCALER)
    trace, scales, moved = _loop("xla", lambda p: used(p, **options), scaler)
    on_cpu = {k: v for k, v in options.items() if k != "capturable"}
    expected, expected_scales, _ = _loop("cpu", lambda p: make(p, **on_cpu), torch.amp.GradScaler("cpu", **SCALER))
    assert_same(trace, expected, rtol=1e-4, atol=2e-5)
    assert_same(scales, expected_scales)
    for i in OVERFLOWS[1:]:
        assert trace[i].tolist() == trace[i - 1].tolist(), "bit for bit"
    reads = kind == "plain" and (not xla_scaler or "host" in traits)
    assert moved[READING] == (STEPS - 3 if reads else 0)
    if not reads:
        assert moved.compilations <= 1 and moved["TransferFromDeviceTime"] == 0
        assert moved.fallbacks == set()


def test_one_program_for_all_steps() -> None:
    """Overflow, growth and an ordinary step use the same program, from the second step on."""
    scaler = amp.GradScaler(**SCALER)
    _loop("xla", lambda p: amp.syncfree.Adam(p, lr=0.1), scaler)
    _, scales, moved = _loop("xla", lambda p: amp.syncfree.Adam(p, lr=0.1), amp.GradScaler(**SCALER))
    assert moved.compilations == 0 and moved["UncachedSyncTensors"] == 0
    assert [s.item() for s in scales] == [128.0, 128.0, 128.0, 256.0, 128.0, 128.0, 128.0, 256.0]


def test_host_state_warns_and_is_restored() -> None:
    class Counting(torch.optim.SGD):
        """An optimizer whose step count is a Python attribute."""

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    p.data.sub_(p.grad * state["count"])

    p = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = Counting([p], lr=1.0)
    scaler = amp.GradScaler(2.0)
    seen = []
    for value, warns in ((1.0, False), (float("inf"), True), (1.0, False)):
        optimizer.zero_grad()
        scaler.scale((p * value).sum()).backward()
        if warns:
            with pytest.warns(UserWarning, match=r"Counting has state outside .* at .*test_amp.py:\d+"):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()
        seen.append((p.tolist(), optimizer.state[p]["count"]))
    assert seen == [([0.0, 0.0], 1), ([0.0, 0.0], 1), ([-2.0, -2.0], 2)]


@pytest.mark.parametrize("name", ["SGD momentum", "SGD dampening", "Adam", "AdamW"])
def test_syncfree_by_hand(name: str) -> None:
    """found_inf as an argument; without it torch's step; torch's state can be loaded."""
    make, options, _ = OPTIMIZERS[name]
    free = getattr(amp.syncfree, name.split()[0])
    start = torch.randn(3)
    p, q = nn.Parameter(start.to("xla")), nn.Parameter(start.clone())
    optimizer, torchs = free([p], **options), make([q], **options)
    assert isinstance(optimizer, make)

    def step(grad: Tensor, found: float | None) -> Any:
        p.grad = grad.to("xla")
        if not found:
            q.grad = grad.clone()
            torchs.step()
        given = {} if found is None else {"found_inf": torch.tensor(found, device="xla")}
        return optimizer.step(lambda: "a loss", **given)

    with counts() as moved:
        for found in (1.0, None, 0.0, 1.0, None):
            assert step(torch.randn(3), found) == "a loss"
            torch_xla.sync()
    assert moved[READING] == 0 and moved.fallbacks == set()
    assert_same(p.detach(), q.detach(), rtol=1e-4, atol=1e-5)

    loaded = free([p], **options)
    loaded.load_state_dict(torchs.state_dict())
    optimizer = loaded
    for found in (None, 1.0, 0.0):
        step(torch.randn(3), found)
        torch_xla.sync()
    assert_same(p.detach(), q.detach(), rtol=1e-4, atol=1e-5)
    assert all(v.device.type == "xla" for v in loaded.state[p].values() if isinstance(v, Tensor))


def test_unscale_then_clip_two_optimizers_one_scaler() -> None:
    results = []
    for device in ("cpu", "xla"):
        torch.manual_seed(3)
        a, b = nn.Linear(3, 3), nn.Linear(3, 1)
        x = torch.randn(2, 3).to(device)
        a.to(device), b.to(device)
        first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.2)
        scaler = amp.GradScaler(8.0) if device == "xla" else torch.amp.GradScaler("cpu", 8.0)
        torch_xla.sync()
        with counts() as moved:
            for i in range(3):
                first.zero_grad(), second.zero_grad()
                loss, other = scaler.scale([b(a(x)).sum(), a(x).mean() * (float("inf") if i == 1 else 1)])
                loss.backward(retain_graph=True)
                other.backward()
                scaler.unscale_(first)
                nn.utils.clip_grad_norm_(a.parameters(), 0.5)
                scaler.step(first)
                scaler.step(second)
                scaler.update()
                torch_xla.sync()
        assert moved[READING] == 0 or device == "cpu"
        results.append([*a.state_dict().values(), *b.state_dict().values(), scaler._scale])
    assert_same(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_scaler_state() -> None:
    scaler = amp.GradScaler(init_scale=4.0, growth_interval=5, use_zero_grad=True)
    scaler.scale(torch.ones((), device="xla", requires_grad=True))
    scaler.update(16.0)
    assert scaler.get_scale() == 16.0 and scaler.is_enabled()
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 16.0 and other.get_growth_interval() == 5
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 16.0
    off = amp.GradScaler(enabled=False)
    x = torch.ones((), device="xla")
    assert off.scale(x) is x
    with pytest.raises(TypeError, match="expected a number as init_scale, got 'xla'"):
        amp.GradScaler("xla")


def test_import_starts_nothing() -> None:
    run_script(
        """
        import torch, torch_xla.amp.syncfree, torch_xla.amp.syncfree.adamw
        from torch_xla.amp import GradScaler, autocast
        from torch_xla._engine.device import devices
        GradScaler(); autocast("xla")
        assert not devices.backend_started()
        """
    )


def test_cuda_autocast_warns_once() -> None:
    """On a host without CUDA torch.autocast("cuda") has no effect: tensors on xla stay float32."""
    code = """
    import warnings
    import torch, torch_xla

    def run(context):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with context():
                dtype = (x @ x).dtype
        return dtype, [str(w.message) for w in caught if "torch_xla" in str(w.message)]

    with torch.autocast("cuda"):  # before a device is used: the program may have no xla tensor
        pass
    x = torch.ones(2, 2, device="xla")
    cases = [
        lambda: torch.autocast("cuda", enabled=False), lambda: torch.autocast("xla", dtype=torch.bfloat16),
        lambda: torch.autocast("cuda"), lambda: torch.cuda.amp.autocast(),
    ]
    results = [run(case) for case in cases]
    assert [dtype for dtype, _ in results] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    assert [len(found) for _, found in results] == [0, 0, 1, 0], results
    assert "use torch.autocast('xla'" in results[2][1][0]
    """
    done = run_script("import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(code))
    assert not done.stdout
