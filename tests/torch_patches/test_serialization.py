"""Serialization, copies, and transfer to processes and libraries preserve values, dtypes and devices."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import dlpack as torch_dlpack

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import assert_same, counts, run_script
from torch_xla.utils import dlpack, serialization

_XLAC = torch_xla._XLAC


def _file(value: Any, **how: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **how)
    file.seek(0)
    return file


def _again(value: Any, **how: Any) -> Any:
    return torch.load(_file(value), **how)


def _alike(got: Tensor, expected: Tensor) -> None:
    assert (type(got), got.dtype, got.device, got.requires_grad, got.is_leaf) == (
        type(expected),
        expected.dtype,
        expected.device,
        expected.requires_grad,
        True,
    )
    assert torch.equal(got.detach().cpu(), expected.detach().cpu())


TENSORS: dict[str, Callable[[], Tensor]] = {
    "floats": lambda: torch.arange(6.0, device="xla").reshape(2, 3),
    "ints": lambda: torch.arange(3, device="xla"),
    "bfloat16": lambda: torch.ones(2, device="xla", dtype=torch.bfloat16),
    "float8": lambda: torch.ones(2, device="xla").to(torch.float8_e4m3fn),
    "bools": lambda: torch.ones(2, device="xla") > 0,
    "complex": lambda: torch.tensor([1 + 2j], device="xla"),
    "scalar": lambda: torch.tensor(2.5, device="xla"),
    "empty": lambda: torch.empty(0, 3, device="xla"),
    "view alone": lambda: torch.arange(6.0, device="xla").view(2, 3).t()[1],
    "leaf": lambda: torch.ones(2, device="xla", requires_grad=True),
    "no leaf": lambda: torch.ones(2, device="xla", requires_grad=True) * 2,
    "parameter": lambda: nn.Parameter(torch.ones(2, device="xla")),
    "buffer": lambda: nn.Buffer(torch.ones(2, device="xla")),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_through_a_file(name: str) -> None:
    x = TENSORS[name]()
    _alike(_again(x), x)
    _alike(ForkingPickler.loads(ForkingPickler.dumps(x.detach())), x.detach())
    if name != "float8":  # torch has no name for it in pickles that are no files
        _alike(pickle.loads(pickle.dumps(x)), x)
    assert torch.equal(_again(x, map_location="cpu"), x.detach().cpu())


def test_the_older_format_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"legacy format .* does not support xla tensors \(torch.float32\[2\] on xla:0\)"
    ):
        _file(torch.ones(2, device="xla"), _use_new_zipfile_serialization=False)
    torch.save(torch.ones(2), io.BytesIO(), _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("where", [None, "cpu"])
def test_a_file_of_the_older_format_that_others_wrote(where: str | None, weights_only: bool) -> None:
    """Its values come after the tensors on xla that are made of them."""
    values = {"a": torch.randn(300, 3), "b": torch.arange(5), "leaf": torch.randn(2)}
    on_xla = {name: value.to("xla") for name, value in values.items()}
    on_xla["leaf"].requires_grad_()
    file = io.BytesIO()
    torch.save.__wrapped__(on_xla, file, _use_new_zipfile_serialization=False)  # type: ignore[attr-defined]  # torch's own
    file.seek(0)
    got = torch.load(file, map_location=where, weights_only=weights_only)
    assert {name: value.device.type for name, value in got.items()} == dict.fromkeys(values, where or "xla")
    assert all(torch.equal(got[name].cpu(), value) for name, value in values.items())
    assert got["leaf"].requires_grad and got["leaf"].is_leaf and (where == "cpu" or got["leaf"]._version == 0)


def test_attributes_of_a_tensor_are_saved() -> None:
    x = torch.ones(2, device="xla")
    x.note = "kept"
    assert _again(x, weights_only=False).note == "kept"


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    _step(model, optimizer)
    return model, optimizer


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 6, device="xla").view(2, 3)).pow(2).sum().backward()
    optimizer.step()
    torch_xla.sync()


@pytest.mark.parametrize("location", [None, "cpu"])
def test_training_goes_on_from_a_checkpoint(location: str | None) -> None:
    model, optimizer = _trained()
    file = _file({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
    checkpoint = torch.load(file, map_location=location)  # weights_only, as is the default
    assert checkpoint["model"]["0.weight"].device.type == (location or "xla") and checkpoint["epoch"] == 3
    other, its_optimizer = _trained()
    other.load_state_dict(checkpoint["model"])
    its_optimizer.load_state_dict(checkpoint["optimizer"])
    for _ in range(2):
        _step(model, optimizer)
        _step(other, its_optimizer)
    assert_same(dict(other.state_dict()), {k: v.cpu() for k, v in model.state_dict().items()})


def test_whole_module_through_a_file() -> None:
    model = nn.ModuleList([nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)]).to("xla")
    model[1].weight = model[0].weight
    again = _again(model, weights_only=False)
    assert again[0].weight is again[1].weight and again[0].weight.requires_grad
    _alike(again[0].weight, model[0].weight)


def test_saving_runs_what_is_pending_once() -> None:
    model, optimizer = _trained()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    with counts() as moved:
        _again({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
    assert moved.executions == moved["GraphFlush"] == 1


def test_views_are_rejected_as_documented() -> None:
    run_script(
        """
        import io
        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm

        t = torch.randn(2, 2, device=xm.xla_device())
        t_view = t[0:2]
        for tensors in ((t, t_view), {"a": t, "b": {"c": t_view}}):
            try:
                torch.save(tensors, io.BytesIO())
            except RuntimeError as error:
                first, rest = str(error).split("\\n", 1)
                assert first == "Tensor ID 2 is sharing a view with tensor ID 1", first
                assert "torch.float32[2, 2] on xla:0" in rest and ".cpu()" in rest, rest
            else:
                raise AssertionError("saved")
        torch.save((t, t.clone()), io.BytesIO())
        torch.save(t, io.BytesIO()), torch.save(t_view, io.BytesIO())
        xm.save((t, t_view), io.BytesIO())
        """
    )


def test_views_of_a_dead_tensor_are_views_of_each_other() -> None:
    first, second = torch.zeros(4, device="xla").split(2)
    with pytest.raises(RuntimeError, match="is sharing a view with tensor ID"):
        torch.save([first, second], io.BytesIO())
    del second
    _again(first)


def test_one_tensor_under_two_names_is_stored_once() -> None:
    x = torch.rand(300, 300, device="xla")
    alone = len(_file(x).getvalue())
    for other in (x, x.detach(), x.data):
        file = _file({"a": x, "b": other})
        assert len(file.getvalue()) < 1.1 * alone
        assert_same(list(torch.load(file).values()), [x.cpu()] * 2)


MAPS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "xla:0"),
    "cpu": ("cpu", "cpu"),
    "xla": ("xla", "xla:0"),
    "xla:0": ("xla:0", "xla:0"),
    "device": (torch.device("cpu"), "cpu"),
    "dict": ({"xla:0": "cpu"}, "cpu"),
    "dict of others": ({"cuda:0": "cpu"}, "xla:0"),
    "function": (lambda storage, location: storage, "cpu"),
    "function that says nothing": (lambda storage, location: None, "xla:0"),
    "meta": ("meta", "meta"),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", MAPS)
def test_map_location(name: str, weights_only: bool) -> None:
    where, expected = MAPS[name]
    x = torch.arange(4.0, device="xla")
    got = _again([x], map_location=where, weights_only=weights_only)[0]
    assert str(got.device) == expected
    if expected != "meta":
        assert got.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["xla", "xla:0", torch.device("xla"), {"cpu": "xla:0"}], ids=str)
def test_files_of_the_cpu_onto_xla(where: Any) -> None:
    base = torch.arange(12.0).view(3, 4)
    values = {
        "strided": base.t()[1:],
        "offset": base[2],
        "ints": torch.tensor([[1, 2]], dtype=torch.int16),
        "bfloat16": torch.ones(2).bfloat16(),
        "empty": torch.empty(0),
        "leaf": torch.ones(2, requires_grad=True),
        "parameter": nn.Parameter(torch.ones(3)),
    }
    with counts() as moved:
        got = torch.load(_file(values), map_location=where)
        assert_same({k: v.detach() for k, v in got.items()}, {k: v.detach() for k, v in values.items()})
    assert moved.fallbacks == set()
    assert got["leaf"].requires_grad and got["leaf"].is_leaf and isinstance(got["parameter"], nn.Parameter)


def test_old_file_of_the_cpu_says_how() -> None:
    file = _file(torch.ones(2), _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match=r"map_location='cpu', then \.to\('xla'\)"):
        torch.load(file, map_location="xla")


def test_pickles_whose_storages_are_loaded_onto_xla() -> None:
    """As skorch reads them: torch's own bytes of a storage, with torch.load and a map_location."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) == ("torch.storage", "_load_from_bytes"):
                return lambda read: torch.load(io.BytesIO(read), map_location="xla", weights_only=False)
            return super().find_class(module, name)

    for device in ("xla", "cpu"):
        tensor = torch.arange(3.0, device=device)
        found = Unpickler(io.BytesIO(pickle.dumps([tensor, tensor]))).load()
        assert found[0] is found[1] and found[0].tolist() == [0, 1, 2] and found[0].device == tensor.device


def test_several_devices(tmp_path: Path) -> None:
    run_script(
        f"""
        import pickle, torch, torch_xla
        x = torch.ones(2, device="xla:3")
        torch.save(x, {str(tmp_path / "x.pt")!r})
        again = torch.load({str(tmp_path / "x.pt")!r})
        assert again.device == x.device and again.tolist() == [1, 1]
        assert pickle.loads(pickle.dumps(x)).device == x.device
        assert torch.load({str(tmp_path / "x.pt")!r}, map_location="xla:2").device.index == 2
        y = torch.ones(2, device="xla:1")
        for call in (lambda: x + y, lambda: torch.cat([y, x]), lambda: y.add_(x), lambda: y.set_(x),
                     lambda: torch.where(x > 0, y, y), lambda: torch.add(x, x, out=y)):
            try:
                call()
            except RuntimeError as error:
                assert "xla:1" in str(error) and "xla:3" in str(error), error
            else:
                raise AssertionError("two devices in one op")
        assert y.copy_(x * 3).tolist() == [3, 3] and y.to("xla:3").device.index == 3
        """,
        CPU_NUM_DEVICES="4",
    )
    for how in ({}, {"map_location": "xla:5"}, {"map_location": lambda storage, location: None}):
        missing = "xla:5" if how.get("map_location") == "xla:5" else "xla:3"
        with pytest.raises(RuntimeError, match=f"{missing}, which does not exist: this process has 1 xla device "):
            torch.load(tmp_path / "x.pt", **how)
    assert torch.load(tmp_path / "x.pt", map_location="xla:0").device.index == 0
    assert torch.load(tmp_path / "x.pt", map_location={"xla:3": "cpu"}).tolist() == [1, 1]


def test_copies() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    x.sum().backward()
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    for y in (shallow, deep):
        _alike(y, x)
        with torch.no_grad():
            y.add_(1)
        assert x.tolist() == [1, 1, 1]
    assert deep.grad is not None and deep.grad is not x.grad and deep.grad.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


def test_deepcopy_of_a_module_keeps_ties_and_flags() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2)).to("xla")
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight and not twin[0].bias.requires_grad
    with torch.no_grad():
        twin[0].weight.zero_()
    twin(torch.ones(2, 2, device="xla"))
    assert model[0].weight.abs().sum().item() > 0 and model[2].num_batches_tracked.item() == 0


def double_in_another_process(values: Any, queue: Any) -> None:
    """Target of the process below."""
    queue.put([value.detach() * 2 for value in values])


QUEUED = """
import faulthandler, gc, multiprocessing, torch, torch_xla
gc.unfreeze()  # the end of the interpreter is tested
faulthandler.dump_traceback_later(60, exit=True)
queue = multiprocessing.get_context("spawn").Queue()
queue.put([torch.ones(3, device="xla") * 2, torch.zeros(2, device="xla") + 1])
"""


def test_a_process_that_ends_sends_what_is_queued() -> None:
    # A thread of the queue's pickles the values while the interpreter ends, and the interpreter waits for it.
    run_script(QUEUED)


def test_processes_exchange_values() -> None:
    for x in (torch.arange(3, device="xla"), nn.Parameter(torch.ones(2, device="xla")), torch.ones(1)):
        _alike(ForkingPickler.loads(ForkingPickler.dumps(x)), x)
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        ForkingPickler.dumps(torch.ones(1, device="xla", requires_grad=True) * 2)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    x = torch.arange(3.0, device="xla")
    process = context.Process(target=double_in_another_process, args=([x, nn.Parameter(x)], queue))
    process.start()
    process.join()
    assert process.exitcode == 0
    results = queue.get()  # although the sender is gone
    assert [(r.device, r.tolist()) for r in results] == [(x.device, [0, 2, 4])] * 2


def test_tensor_ids() -> None:
    x, y = torch.ones(2, 2, device="xla"), torch.ones(2, 2, device="xla")
    number = _XLAC._xla_get_tensor_id
    first = number(x)
    assert first > 0 and number(y) == first + 1
    x.add_(1)
    view = x[0]
    assert number(x) == first == number(x.detach()) == number(x.data)
    assert len({first, number(y), number(view), number(x.view(4)), number(x.clone())}) == 5
    same = number(view)
    torch_xla.sync()
    x.mul_(2)
    assert (number(x), number(view), number(view.detach())) == (first, same, same)
    del x
    torch_xla.sync()
    assert number(view) == same
    view.resize_(5)
    assert number(view) != same
    with pytest.raises(RuntimeError, match="Input tensor is not an XLA tensor"):
        number(torch.ones(2))


def test_shared_memory_is_found_by_storage() -> None:
    """As safetensors and accelerate look for it; nothing is behind the address."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)}).to("xla")
    model["c"].weight = model["a"].weight
    state = model.state_dict()
    found: dict[tuple[int, int], set[str]] = {}
    for name, value in state.items():
        storage = value.untyped_storage()
        found.setdefault((storage.data_ptr(), storage.nbytes()), set()).add(name)
        assert storage.device == value.device and storage.nbytes() == value.nbytes
        assert value.data_ptr() == storage.data_ptr()  # which is how safetensors sees that it is complete
        assert value.view(-1)[-1].data_ptr() >= storage.data_ptr()
    assert sorted(map(sorted, found.values())) == [
        ["a.bias"], ["a.weight", "c.weight"], ["b.bias"], ["b.weight"], ["c.bias"],
    ]  # fmt: skip
    x = torch.ones(2, 3, device="xla")
    assert x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() == x.t().untyped_storage().data_ptr()
    assert x[1].untyped_storage().nbytes() == 24 and x[:, :1].expand(2, 90).untyped_storage().nbytes() == 720
    assert x.clone().untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    (model["a"](torch.ones(1, 4, device="xla")) * 2).sum().backward()
    assert model["a"].weight.grad.tolist() == [[2] * 4] * 4


@pytest.mark.parametrize(
    "read",
    [lambda s: s[0], lambda s: s.tolist(), lambda s: s.cpu(), lambda s: s.fill_(0), lambda s: s.resize_(0),
     lambda s: s.clone(), lambda s: torch.empty(0, device="xla").set_(s), lambda s: torch.save(s, io.BytesIO())],
)  # fmt: skip
def test_storage_cannot_be_read(read: Callable[[Any], Any]) -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(x.untyped_storage())
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("source", ["cpu", "xla"])
def test_load_state_dict(source: str, assign: bool) -> None:
    state = {name: torch.full_like(v, 7.0).to(source) for name, v in nn.Linear(2, 3).state_dict().items()}
    model = nn.Linear(2, 3).to("xla")
    before = model.weight
    model.load_state_dict(state, assign=assign)
    assert (model.weight is before) is not assign
    assert model.weight.device.type == (source if assign else "xla") and model.weight.requires_grad
    assert model.weight.sum().item() == 42


Point = namedtuple("Point", "x y")


def test_maybe_convert_to_cpu() -> None:
    x = torch.ones(2, device="xla")
    data = {"list": [x, 1], "tuple": (x.detach(), "s"), "point": Point(x, None), "dict": OrderedDict(a=x), "cpu": None}
    with counts() as moved:
        got = xm._maybe_convert_to_cpu(data)
    assert moved.executions == 1
    assert [type(v) for v in got.values()] == [type(v) for v in data.values()]
    tensors = [got["list"][0], got["tuple"][0], got["point"].x, got["dict"]["a"]]
    assert all(t.device.type == "cpu" and t.tolist() == [1, 1] for t in tensors)
    assert len({t.data_ptr() for t in tensors}) == 1, "a tie stays one"
    assert data["list"][0] is x and data["dict"]["a"] is x, "what was given is as it was"
    assert xm._maybe_convert_to_cpu(x).device.type == "cpu"
    assert xm._maybe_convert_to_cpu(data, convert=False)["list"][0] is x
    p = xm._maybe_convert_to_cpu([nn.Parameter(x)])[0]
    assert isinstance(p, nn.Parameter) and p.device.type == "cpu"


def test_send_cpu_data_to_device() -> None:
    inner = [torch.ones(2), "s"]
    data = {"a": inner, "b": (torch.zeros(1, requires_grad=True), 2)}
    assert xm.send_cpu_data_to_device(data, "xla:0") is data and data["a"] is inner
    assert inner[0].device.type == "xla" and data["b"][0].device.type == "xla" and data["b"][0].requires_grad
    assert [t.device.type for t in xm.send_cpu_data_to_device(torch.ones(2), "xla")] == ["xla"]
    with pytest.raises(TypeError, match="input_sharding must be a ShardingSpec"):
        xm.send_cpu_data_to_device([], "xla", input_sharding=1)


def test_check_view_sharing() -> None:
    x = torch.ones(2, device="xla")
    xm.check_view_sharing({"a": x, "b": [x, x.detach(), x.clone(), torch.ones(1)]})
    with pytest.raises(RuntimeError, match=r"Tensor ID \d+ is sharing a view with tensor ID \d+"):
        xm.check_view_sharing((x, [x[:1]]))


def test_xm_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4.0, device="xla")
    data = {"x": x, "view": x[1:], "epoch": 2}
    xm.save(data, tmp_path / "x.pt")
    file = io.BytesIO()
    xm.save(data, file, master_only=False)
    for source in (tmp_path / "x.pt", io.BytesIO(file.getvalue())):
        got = torch.load(source)
        assert got["x"].device.type == "cpu" and got["view"].tolist() == [1, 2, 3] and got["epoch"] == 2
    monkeypatch.setattr("torch_xla._engine.job.replicas.local_ordinal", lambda: 1)
    xm.save(data, tmp_path / "second.pt")
    assert not (tmp_path / "second.pt").exists()
    xm.save(data, tmp_path / "second.pt", global_master=True)
    assert (tmp_path / "second.pt").exists()


def test_a_file_for_each_tensor(tmp_path: Path) -> None:
    x, y = torch.ones(2, device="xla"), torch.zeros(3, dtype=torch.int64)
    path = tmp_path / "data.pt"
    for first, count in ((0, 3), (3, 2)):  # the second save takes new names, and leaves nothing of the first
        data = {"x": x, "tie": [x.detach()], "y": (y,), "views": [x[:1]] * (count - 2), "n": 1}
        serialization.save(data, path)
        names = {file.name for file in (tmp_path / "data.pt.tensors").iterdir()}
        assert names == {f"tensor_{first + i}.pt" for i in range(count)}
    got = serialization.load(path)
    assert got["x"] is got["tie"][0] and got["x"].tolist() == [1, 1] and got["x"].device.type == "cpu"
    assert got["y"][0].dtype == torch.int64 and got["n"] == 1


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dlpack(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1], [1, 5]]).to(dtype)
    x = values.to("xla")
    got = torch_dlpack.from_dlpack(dlpack.to_dlpack(x))
    assert got.dtype == dtype and torch.equal(got, values)
    got.zero_()
    again = dlpack.from_dlpack(dlpack.to_dlpack(x))
    assert_same(again, values)
    again.zero_()
    assert_same(dlpack.from_dlpack(values.t()), values.t())
    assert_same(x, values)


@pytest.mark.parametrize("setting", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_32BIT_LONG"])
def test_dlpack_has_the_dtype_of_the_tensor_where_it_is_stored_narrower(setting: str) -> None:
    run_script(
        """
        import torch, torch_xla
        from torch_xla.utils.dlpack import from_dlpack, to_dlpack
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool):
            x = torch.tensor([1, 0, 1]).to(dtype)
            got = torch.utils.dlpack.from_dlpack(to_dlpack(x.to("xla")))
            assert got.dtype == dtype and torch.equal(got, x), got
            again = from_dlpack(to_dlpack(x.to("xla")))
            assert again.dtype == dtype and torch.equal(again.cpu(), x), again
        """,
        **{setting: "1"},
    )


def test_dlpack_of_views_and_pending_values() -> None:
    x = torch.arange(6.0, device="xla").view(2, 3)
    y = (x + 1).t()[1:]
    assert torch_dlpack.from_dlpack(dlpack.to_dlpack(y)).tolist() == [[2, 5], [3, 6]]
    p = nn.Parameter(x)
    assert torch_dlpack.from_dlpack(dlpack.to_dlpack(p)).tolist() == x.tolist()


def test_dlpack_of_others() -> None:
    assert_same(dlpack.from_dlpack(np.arange(6).reshape(2, 3).T), torch.arange(6).view(2, 3).t())
    assert_same(dlpack.from_dlpack(jnp.ones(3, jnp.bfloat16)), torch.ones(3, dtype=torch.bfloat16))
    theirs = jnp.arange(3.0)
    ours = dlpack.from_dlpack(theirs)
    ours.add_(1)
    torch_xla.sync()
    assert theirs.tolist() == [0, 1, 2], "values are copied: a buffer of ours is ours alone"
    source = np.zeros(2, np.float32)
    ours = dlpack.from_dlpack(source)
    source[:] = 1
    assert ours.tolist() == [0, 0]


def test_dlpack_errors() -> None:
    with pytest.raises(ValueError, match="expected an xla tensor, got one on cpu"):
        dlpack.to_dlpack(torch.ones(1))
    with pytest.raises(TypeError, match="expected a PyCapsule or an object with __dlpack__"):
        dlpack.from_dlpack([1.0])
    with pytest.raises(TypeError, match="torch has no dtype for int4"):
        dlpack.from_dlpack(jnp.ones(2, "int4"))
    x = torch.ones(1, device="xla")
    for call in (lambda: torch.from_dlpack(x), lambda: torch_dlpack.to_dlpack(x), x.__dlpack_device__):
        with pytest.raises((RuntimeError, ValueError, BufferError)):
            call()


@pytest.mark.parametrize("call", [lambda x: x.numpy(), np.asarray, lambda x: x.__array__(np.float64)])
def test_numpy_is_torchs_error(call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(TypeError, match="can't convert xla:0 device type tensor to numpy"):
        call(torch.ones(2, device="xla"))


def test_a_failed_load_leaves_no_map_location(tmp_path: Path) -> None:
    """torch keeps the map_location of a load that failed, and rebuilds every later copy of a tensor there."""
    torch.save(torch.ones(2), tmp_path / "file")
    with pytest.raises(RuntimeError, match=r"cuda|CUDA"):
        torch.load(tmp_path / "file", map_location="cuda")
    assert copy.copy(torch.ones(2, device="xla")).device.type == "xla"
