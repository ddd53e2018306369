"""An op without a lowering runs on the CPU: correct results, counted, one warning that names op and line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.helpers import Counts, assert_same, counts, run_script
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.diagnostics import fallback_warning
from torch_xla.debug import metrics


@pytest.fixture(autouse=True)
def first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the warnings, as if no op had fallen back in this process."""
    monkeypatch.setattr(fallback_warning, "_warned", set())


def watched(function: Callable[[], Any]) -> tuple[Any, Counts, list[str]]:
    """Return the result, the counter deltas, and the messages of the warnings."""
    with warnings.catch_warnings(record=True) as caught, counts() as moved:
        warnings.simplefilter("always")
        result = function()
    return result, moved, [str(w.message) for w in caught]


HERE = shorten_paths(__file__)
X = torch.tensor([[3.0, 0.0, 1.0], [1.0, 3.0, 0.0]])
OPS: dict[str, tuple[Callable[[Tensor], Any], set[str]]] = {
    "nonzero": (lambda x: x.nonzero(), {"aten::nonzero"}),
    "where": (lambda x: torch.where(x > 0), {"aten::nonzero"}),
    "masked_select": (lambda x: x.masked_select(x > 0.5), {"aten::masked_select"}),
    "boolean index": (lambda x: x[x > 0.5], {"aten::index.Tensor"}),
    "unique": (lambda x: x.unique(return_inverse=True, return_counts=True), {"aten::_unique2"}),
    "bincount": (lambda x: x.long().flatten().bincount(), {"aten::bincount"}),
    "bessel_j0": (lambda x: torch.special.bessel_j0(x), {"aten::special_bessel_j0"}),
    "lstsq": (lambda x: torch.linalg.lstsq(x.t() * 2, x.t()[:, :1], driver="gelsd")[0], {"aten::linalg_lstsq"}),
    "repeat_interleave": (lambda x: x.repeat_interleave(x[0].long(), dim=1), {"aten::repeat_interleave.Tensor"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_results_counters_and_warnings(name: str) -> None:
    function, expected_ops = OPS[name]
    x = X.to("xla") * 1  # pending
    got, moved, messages = watched(lambda: function(x))
    assert_same(got, function(X))
    assert moved.fallbacks >= expected_ops, moved.fallbacks
    assert len(messages) == len(moved.fallbacks)
    for op in moved.fallbacks:
        (message,) = [m for m in messages if re.search(rf"the\s+counter\s+{re.escape(op)}\s", m)]
        assert f" at {HERE}:" in message and "See: torch-xla explain " in message
        assert moved[op] >= 1


def test_one_warning_per_op_and_line() -> None:
    x = X.to("xla")

    def often() -> None:
        for _ in range(3):
            x.nonzero()
            x.long().flatten().bincount()

    _, moved, messages = watched(often)
    assert (moved["aten::nonzero"], moved["aten::bincount"]) == (3, 3)
    assert sorted(m.split()[1] for m in messages) == ["torch.bincount", "torch.nonzero"]


def test_each_line_warns() -> None:
    """Each line warns, even if a library suppressed the first warning of the process."""
    x = X.to("xla")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x.nonzero()
    _, moved, messages = watched(lambda: x.nonzero())
    assert moved["aten::nonzero"] == len(messages) == 1


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # torch's own deprecation warnings
def test_an_op_of_another_library_is_counted() -> None:
    """It is counted under its own name, and is in executed_fallback_ops()."""
    packed = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), None)
    linear = torch.ops.quantized.linear_dynamic
    got, moved, messages = watched(lambda: linear(X.to("xla"), packed))
    assert_same(got, linear(X, packed))
    assert moved.fallbacks == {"quantized::linear_dynamic"} and len(messages) == 1
    assert "quantized::linear_dynamic" in metrics.executed_fallback_ops()
    assert "quantized::linear_dynamic" in metrics.short_metrics_report()


def test_a_library_warns_once(tmp_path: Path) -> None:
    """The user cannot change the lines of a library; a line of the user that calls the same op still warns."""
    file = tmp_path / "site-packages" / "somelib" / "layers.py"
    code = compile("def run(x):\n    x.nonzero()\n    return x.masked_select(x > 0.5)\n", str(file), "exec")
    library: dict[str, Any] = {}
    exec(code, library)
    x = X.to("xla")
    _, moved, messages = watched(lambda: (library["run"](x), library["run"](x), x.masked_select(x > 0.5)))
    assert (moved["aten::nonzero"], moved["aten::masked_select"]) == (2, 3)
    of_library, mine = (" ".join(message.split()) for message in messages)
    assert "torch.nonzero at" in of_library and "operators that somelib runs on the CPU do not warn" in of_library
    assert f"torch.masked_select at {HERE}:" in mine and "somelib" not in mine


def test_a_generator_of_the_cpu_is_named() -> None:
    def draw(device: str) -> Tensor:
        return torch.rand(3, device=device, generator=torch.Generator().manual_seed(3))

    got, moved, messages = watched(lambda: draw("xla"))
    assert_same(got, draw("cpu"))
    assert len(moved.fallbacks) == 1
    (message,) = (" ".join(message.split()) for message in messages)
    assert "has a generator of the CPU, so it runs on the CPU" in message
    assert "fix: create the generator with torch.Generator(device='xla')" in message


def test_an_output_on_another_device_raises() -> None:
    x = X.to("xla")
    with pytest.raises(
        RuntimeError, match=r"aten::masked_select\.out: expected all tensors on one device, .*is on cpu"
    ):
        torch.masked_select(x, x > 0, out=torch.empty(0))


def test_the_line_is_the_users() -> None:
    x = X.to("xla")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x.nonzero()  # this line
    line = int(str(caught[0].message).split(f"{HERE}:")[1].split()[0])
    with open(__file__) as source:
        assert "# this line" in source.readlines()[line - 1]
    assert (caught[0].filename, caught[0].lineno) == (__file__, line), "the location of the warning"


def test_inputs_are_computed_in_one_run() -> None:
    x = X.to("xla")
    a, mask = x + 1, x * 2 > 1
    _, moved, _ = watched(lambda: a.masked_select(mask))
    assert moved["aten::masked_select"] == 1
    assert moved.executions == 1


@pytest.mark.filterwarnings("ignore:torch_xla")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[0].put_(torch.tensor([1, 2], device=x.device), torch.tensor([8.0, 9.0], device=x.device)),
        lambda x: x.t()[1].put_(torch.tensor([0], device=x.device), torch.tensor([7.0], device=x.device)),
        lambda x: torch.linalg.inv(x[:2, :2] + torch.eye(2, device=x.device), out=x[:2, :2]),
        lambda x: torch.cumsum(x.clone(), 1, out=x),
        lambda x: torch.histc(x.clone(), 3, out=x[0]),
        lambda x: x[:, 1:].geqrf()[0],
        lambda x: x[0].renorm_(2, 0, 0.5) if x.dim() > 2 else x.renorm_(2, 0, 0.5),
        lambda x: torch.special.bessel_j0(x.clone(), out=x),
        lambda x: x[1].polygamma_(1),
        lambda x: x.t().masked_scatter_(x.t() > 0.5, torch.arange(6.0, device=x.device)),
        lambda x: torch.nansum(x, 1, out=x[:, 0].clone()),
    ],
    ids=["put_", "put_ twice", "inv", "cumsum", "histc", "geqrf", "renorm_", "bessel_j0", "polygamma_",
         "masked_scatter_", "nansum"],
)  # fmt: skip
def test_in_place_and_out(function: Callable[[Tensor], Tensor]) -> None:
    """Both the result and its base are updated, whether or not the op has a lowering."""
    cpu, base = X + 0.25, (X + 0.25).to("xla")
    row = base[0]
    expected, got = function(cpu), function(base)
    assert_same([got, base, row], [expected, cpu, cpu[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:torch_xla")
def test_gradient_through_a_fallback() -> None:
    def run(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (x[x > 0.5] * 2).sum().backward()
        x.masked_select(x > 2).pow(2).sum().backward()
        return x.grad

    assert_same(run(X.to("xla")), run(X))


def test_generator_argument_runs_on_the_cpu_with_that_generator() -> None:
    draws = []
    for device in ("xla", "cpu", "xla"):
        generator = torch.Generator().manual_seed(3)
        value, moved, _ = watched(lambda: torch.zeros(3, device=device).uniform_(generator=generator))  # noqa: B023
        draws.append(value.tolist())
    assert draws[0] == draws[1] == draws[2]
    assert "aten::uniform_" in moved.fallbacks


def test_warnings_can_be_turned_off() -> None:
    code = "import torch, torch_xla\nprint(torch.tensor([0, 1], device='xla').nonzero().tolist())"
    assert run_script(code, TORCH_XLA_WARN_FALLBACK="0").stdout == "[[1]]\n"
    loud = run_script(code, check=False)
    assert loud.returncode == 1 and "torch.nonzero at " in loud.stderr  # the script runs with -W error


@pytest.mark.parametrize(
    ("op", "text", "page"),
    [
        ("aten::index.Tensor", "x[mask] at c.py:27 has a data-dependent shape", "data-dependent-shape"),
        ("aten::index_put_", "x[mask] = values at c.py:27 has a data-dependent shape", "data-dependent-shape"),
        ("aten::nonzero_out", "torch.nonzero at c.py:27 has a data-dependent shape", "data-dependent-shape"),
        ("aten::masked_select.out", "torch.masked_select at c.py:27", "data-dependent-shape"),
        ("aten::special_bessel_j0", "aten::special_bessel_j0 at c.py:27 has no lowering", "cpu-fallback"),
    ],
)
def test_the_message_names_the_cause(op: str, text: str, page: str) -> None:
    headline, cause, fix, see = fallback_warning.fallback_message(op, "c.py:27").splitlines()
    assert headline.startswith(text) and "runs on the CPU" in headline
    assert cause.startswith("cause: ") and f"the counter {op} counts the calls" in cause
    assert fix.startswith("fix: ") and see == f"See: torch-xla explain {page}"
    assert ("has no lowering" in headline) == (page == "cpu-fallback")
