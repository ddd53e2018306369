"""Source locations: the user's line and torch.nn module of each node, of buffers, and in HLO."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import counts, run_script
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.lowering.registry import Rule
from torch_xla._engine.recorder import source_info
from torch_xla._engine.recorder.source_info import Origin


@pytest.fixture
def captured() -> Iterator[None]:
    """Capture source locations in the test."""
    source_info.set_capture(True)
    yield
    source_info.set_capture(False)


def here() -> int:
    """Return the caller's line."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def graph_of(*tensors: torch.Tensor) -> graph_spec.GraphSpec:
    return graph_spec.describe_graph(recorder.bindings().collect_only(0, recorder.bindings().nodes_of(list(tensors))))


def nodes(*tensors: torch.Tensor) -> dict[str, Origin | None]:
    """Return the source location of the last node of each op that computes the tensors."""
    return {node.op: node.origin for node in graph_of(*tensors).nodes}


def line(origin: Origin | None) -> int:
    """Return the line of a source location, which must be in this file."""
    assert origin is not None and origin.line is not None
    file, _, number = origin.line.rpartition(":")
    assert Path(file) == Path(__file__)
    return int(number)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x)) * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.exp()


def test_nothing_is_captured_by_default() -> None:
    x = torch.ones(2, device="xla") + 1
    assert set(nodes(x).values()) == {None}
    assert not source_info.is_capturing()


def test_line_of_each_op(captured: None) -> None:
    x = torch.ones(2, 2, device="xla")
    added, at_add = x + 1.5, here()
    result, at_mm = (
        torch.mm(added, x), here())  # fmt: skip
    found = nodes(result)
    assert line(found["aten::add.Tensor"]) == at_add
    assert abs(line(found["aten::mm"]) - at_mm) <= 1
    origin = found["aten::mm"]
    assert origin is not None
    assert origin.short == f"test_line_of_each_op@test_source_info.py:{line(origin)}"
    assert origin.frames[0].function == "test_line_of_each_op"


def test_line_inside_torchs_own_functions_is_the_users(captured: None) -> None:
    x = torch.ones(2, 3, device="xla")
    y, at = nn.functional.gelu(x).softmax(1), here()
    for origin in nodes(y).values():
        assert origin is not None
    assert line(nodes(y)["aten::_softmax"]) == at


def test_views_and_writes(captured: None) -> None:
    x = torch.zeros(2, 3, device="xla")
    view, at_view = x[0], here()
    view.copy_(torch.ones(3, device="xla")), (at_write := here())
    spec = graph_of(x)
    assert [line(n.origin) for n in spec.nodes if n.schema_kind == graph_spec.SCATTER] == [at_write]
    x.add_(1)
    assert line(nodes(view + 1)["aten::select.int"]) == at_view  # recomputed from the written value


def test_results_of_an_op_with_several(captured: None) -> None:
    (values, indices), at = torch.ones(2, 3, device="xla").max(1), here()
    assert line(nodes(values, indices)["torch_xla::getitem"]) == at


def test_buffers_keep_the_line_that_made_them(captured: None) -> None:
    x, at_upload = torch.ones(2).to("xla"), here()
    y, at_op = x * 3, here()
    torch_xla.sync()
    spec = graph_of(x + y)
    assert [line(origin) for origin in spec.leaf_origins] == [at_upload, at_op]


def test_scope_is_the_path_of_modules(captured: None) -> None:
    net = Net().to("xla")
    out = net(torch.ones(1, 3, device="xla"))
    scopes = [(n.op.split(".")[0], n.origin.scope) for n in graph_of(out).nodes if n.origin is not None]
    assert scopes[1:] == [
        *[(op, f"Net/blocks.{i}{rest}") for i in (0, 1) for op, rest in
          (("aten::linear", "/fc"), ("aten::tanh", "/act"), ("aten::mul", ""))],
        ("aten::exp", "Net"),
    ]  # fmt: skip


def test_backward_has_the_scopes_of_the_forward(captured: None) -> None:
    net = Net().to("xla")
    loss = net(torch.ones(1, 3, device="xla")).sum()
    loss.backward(), (at := here())
    found = nodes(*(p.grad for p in net.blocks[0].parameters() if p.grad is not None))
    assert found["aten::tanh_backward"] is not None
    assert found["aten::tanh_backward"].scope == "backward/Net/blocks.0/act"
    assert line(found["aten::tanh_backward"]) == at
    assert found["aten::sum.dim_IntList"] is not None
    assert found["aten::sum.dim_IntList"].scope == "backward/Net/blocks.0/fc"


def test_scope_ends_with_a_forward_that_raises(captured: None) -> None:
    net = Net().to("xla")
    with pytest.raises(RuntimeError):
        net(torch.ones(1, 4, device="xla"))
    origin = nodes(torch.ones(2, device="xla").exp())["aten::exp"]
    assert origin is not None and origin.scope == ""


def test_capture_that_ends_inside_a_forward_leaves_no_scope() -> None:
    class Stops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            source_info.set_capture(False)
            return x.exp()

    source_info.set_capture(True)
    Stops()(torch.ones(2, device="xla"))
    source_info.set_capture(True)
    try:
        found = nodes(nn.Tanh()(torch.ones(2, device="xla")))["aten::tanh"]
        assert found is not None and found.scope == "Tanh"
    finally:
        source_info.set_capture(False)


def test_modules_on_several_threads(captured: None) -> None:
    found: dict[int, str] = {}
    ready = threading.Barrier(4)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ready.wait()
            return x.exp()

    def work(i: int) -> None:
        holder = nn.Sequential(*(nn.Identity() for _ in range(i)), Waits())
        origin = nodes(holder(torch.ones(2, device="xla")))["aten::exp"]
        found[i] = "" if origin is None else origin.scope

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"Sequential/{i}" for i in range(4)}


def test_source_locations_are_not_in_the_graph_key() -> None:
    def step() -> torch.Tensor:
        return (torch.full((2,), 5.0, device="xla") * 7).tanh()

    kept = step()
    torch_xla.sync()
    source_info.set_capture(True)
    try:
        with counts() as moved:
            again = step()
            torch_xla.sync()
    finally:
        source_info.set_capture(False)
    assert moved.only("CompileTime", "CachedSyncTensors") == {"CachedSyncTensors": 1}
    assert torch.equal(again.cpu(), kept.cpu())


def _broken(monkeypatch: pytest.MonkeyPatch, size: int) -> torch.Tensor:
    def fails(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setitem(RULES, "aten::erfinv", Rule("aten::erfinv", fails))
    return nn.Sequential(nn.Identity(), _Erfinv())(torch.ones(size, device="xla"))


class _Erfinv(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.erfinv()


def test_errors_name_the_line(captured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _broken(monkeypatch, 3)
    wanted = r"^aten::erfinv.*no \(recorded at .*test_source_info\.py:\d+, in Sequential/1\)"
    with pytest.raises(LoweringError, match=wanted):
        x.cpu()


def test_errors_explain_how_to_get_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _broken(monkeypatch, 4)
    with pytest.raises(LoweringError, match=r"no; set XLA_IR_DEBUG=1 to see the line that recorded it"):
        x.cpu()


SCRIPT = """
import torch, torch_xla
from pathlib import Path
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        y = torch.where(self.fc(x) > 0, x, -x)
        return torch.where(y > 1, y, x)
net = Net().to("xla")
torch_xla.sync()
net(torch.ones(1, 2, device="xla")).sum().item()
dump = Path({file!r} + ".0").read_text()
"""


def test_ir_debug(tmp_path: Path) -> None:
    """XLA_IR_DEBUG: graph dumps have scopes and locations."""
    file = tmp_path / "graphs.txt"
    check = """
assert "scope=Net/fc, location=forward@<string>:9, " in dump, dump
assert "location=<module>@<string>:13, " in dump, dump
"""
    run_script(SCRIPT.format(file=str(file)) + check, XLA_IR_DEBUG="1", XLA_SAVE_TENSORS_FILE=str(file))


def test_hlo_debug(tmp_path: Path) -> None:
    """XLA_HLO_DEBUG: HLO has them, separately for each call of a function that jax traces once; so has compiled HLO."""
    file = tmp_path / "graphs.txt"
    check = r"""
import re
lines = set(re.findall(r'op_name="jit\(graph\)/(Net[^"]*?)/(aten::\w+)[^"]*" source_file="<string>" source_line=(\d+)', dump))
assert {("Net/fc", "aten::linear", "9"), ("Net", "aten::where", "9"), ("Net", "aten::where", "10")} <= lines, lines
from torch_xla._engine.compilation import program_cache
compiled = "".join(p.compiled.as_text() for p in program_cache.cache.values())
assert 'op_name="jit(graph)/Net/fc/aten::linear/dot_general"' in compiled
assert re.search(r'\d+ "<string>"', compiled)
"""  # noqa: E501
    env = {"XLA_HLO_DEBUG": "1", "XLA_SAVE_TENSORS_FILE": str(file), "XLA_SAVE_TENSORS_FMT": "hlo"}
    run_script(SCRIPT.format(file=str(file)) + check, **env)
