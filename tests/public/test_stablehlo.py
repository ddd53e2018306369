"""StableHLO export: contents of the folder and results, in this process and in a Python with jax only."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import stablehlo
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
from torch_xla.experimental.stablehlo_custom_call import extract_custom_call_outputs_shape_dtype, stablehlo_custom_call
from torch_xla.stablehlo import StableHLOExportOptions, StableHLOGraphModule


class Classifier(nn.Module):
    """Convolutions, normalization in eval mode, pooling, a buffer, and a constant that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8, 5)
        self.register_buffer("offset", torch.arange(5.0))
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3))) * self.scale + self.offset


class Decoder(nn.Module):
    """Embeddings tied to the head, attention, layer norms; pytrees as input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: dict[str, torch.Tensor], *, half: bool = False) -> dict[str, Any]:
        hidden = self.block(self.embedding(batch["tokens"]), src_key_padding_mask=batch["padding"])
        logits = self.head(hidden) * (0.5 if half else 1.0)
        return {"logits": logits, "last": (logits[:, -1].argmax(-1), None), "shape": logits.shape[-1]}


def _tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -2:] = True
    return {"tokens": torch.randint(0, 11, (batch, length)), "padding": padding}


#: A model, arguments, dynamic shapes, and further arguments of other sizes.
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], Any, tuple[Any, ...] | None]] = {
    "convolutions": (Classifier().eval(), (torch.randn(2, 3, 8, 8),), None, None),
    "convolutions, any batch": (
        Classifier().eval(), (torch.randn(3, 3, 8, 8),), {"x": {0: Dim("batch", min=2)}}, (torch.randn(7, 3, 8, 8),),
    ),
    "decoder": (Decoder().eval(), (_tokens(2, 6),), None, None),
    "decoder, any batch": (
        Decoder().eval(), (_tokens(3, 6),),
        {"batch": {"tokens": {0: Dim("batch")}, "padding": {0: Dim("batch")}}}, (_tokens(5, 6),),
    ),
    "sizes that follow from others": (
        nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 4)), (torch.randn(3, 5, 4),),
        {"input": {0: Dim("a", max=64), 1: Dim("b", max=64)}}, (torch.randn(4, 6, 4),),
    ),
    "an example that is a part of a larger tensor": (
        nn.Linear(4, 3), (torch.randn(9, 4)[:2],), {"input": {0: Dim("batch")}}, (torch.randn(5, 4),),
    ),
    "bfloat16": (nn.Linear(4, 3).bfloat16(), (torch.randn(2, 4).bfloat16(),), None, None),
    "float64": (nn.Linear(4, 3).double(), (torch.randn(2, 4).double(),), None, None),
    "complex": (nn.Linear(4, 3, dtype=torch.complex64), (torch.randn(2, 4, dtype=torch.complex64),), None, None),
}  # fmt: skip


def _export(model: nn.Module, args: tuple[Any, ...], shapes: Any = None) -> torch.export.ExportedProgram:
    return torch.export.export(copy.deepcopy(model), args, dynamic_shapes=shapes)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _on_cpu(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_on_cpu(v) for v in value)
    return value.cpu() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", CASES)
def test_exported_program_matches_model(name: str, tmp_path: Path) -> None:
    model, args, shapes, others = CASES[name]
    stablehlo.save_as_stablehlo(_export(model, args, shapes), tmp_path)
    loaded = StableHLOGraphModule.load(tmp_path)
    for given in (args,) if others is None else (args, others):
        with torch.no_grad():
            want = model(*given)
        got = _on_cpu(loaded(*given))
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if "bfloat16" in name else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(got, want, **tolerance)


def test_recorded_as_one_node_without_reads() -> None:
    model, args, _, _ = CASES["convolutions"]
    module = stablehlo.exported_program_to_stablehlo(_export(model, args))
    x = args[0].to("xla")
    first = module(x)
    torch_xla.sync()
    import torch_xla.debug.metrics as met

    met.clear_all()
    second = module(x + 1)
    torch_xla.sync()
    assert met.counter_value("xla::jax_call") == 1
    assert met.metric_data("TransferFromDeviceTime") is None
    assert not torch.equal(first.cpu(), second.cpu())


ALONE = """
import json, pathlib, sys
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
folder = pathlib.Path(sys.argv[1])
meta = json.loads((folder / "functions/forward.meta").read_text())
program = jax.export.deserialize(bytearray((folder / "functions/forward.jax").read_bytes()))
given = dict(np.load(folder / "arguments.npz"))
inputs = [np.load(folder / "data" / l["name"]) if l["type_"]["value"] == "parameter" else given[str(l["position"])]
          for l in meta["input_locations"]]
assert "torch" not in sys.modules and "torch_xla" not in sys.modules
np.savez(folder / "results.npz", *map(np.asarray, program.call(*inputs)))
"""


def test_runs_with_jax_only(tmp_path: Path) -> None:
    model, args, shapes, others = CASES["convolutions, any batch"]
    assert others is not None
    stablehlo.save_as_stablehlo(_export(model, args, shapes), tmp_path)
    np.savez(tmp_path / "arguments.npz", **{"0": others[0].numpy()})
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, cwd=tmp_path)
    with torch.no_grad():
        want = model(*others)
    np.testing.assert_allclose(np.load(tmp_path / "results.npz")["arr_0"], want.numpy(), rtol=1e-4, atol=1e-5)


def test_folder_contents(tmp_path: Path) -> None:
    model, args, shapes, _ = CASES["convolutions, any batch"]
    options = StableHLOExportOptions(inline_all_constant=False, export_node_metadata=True)
    stablehlo.save_as_stablehlo(_export(model, args, shapes), tmp_path, options)
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    # BatchNorm's counter is not an input of a program in eval mode.
    held = set(model.state_dict()) - {"features.1.num_batches_tracked"}
    functions = {f"functions/forward.{ending}" for ending in ("mlir", "bytecode", "jax", "meta")}
    assert names == {f"data/{name}" for name in held} | functions | {"constants/0"}
    meta = json.loads((tmp_path / "functions/forward.meta").read_text(), object_hook=stablehlo.stablehlo_obj_hook)
    assert re.fullmatch(r"\d+\.\d+\.\d+", meta.stablehlo_version)
    assert [loc.name for loc, _ in meta.unused_inputs] == ["features.1.num_batches_tracked"]
    (x,) = [s for s, loc in zip(meta.input_signature, meta.input_locations, strict=True)
            if loc == stablehlo.InputLocation.input_arg(0)]  # fmt: skip
    assert x == stablehlo.VariableSignature([0, 3, 8, 8], "float32", [0])
    assert meta.output_signature == [stablehlo.VariableSignature([0, 5], "float32", [0])]
    text = (tmp_path / "functions/forward.mlir").read_text()
    assert "stablehlo.convolution" in text
    assert "features.0/aten::convolution" in text
    again = json.dumps(meta, cls=stablehlo.StableHLOJSONSerializer)
    assert json.loads(again, object_hook=stablehlo.stablehlo_obj_hook) == meta


def test_writes_to_buffers(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    module = stablehlo.exported_program_to_stablehlo(_export(model, (x,)))
    for _ in range(3):
        torch.testing.assert_close(module(x).cpu(), model(x), rtol=1e-5, atol=1e-5)
    module.eval()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(module._held[name].cpu(), value, rtol=1e-5, atol=1e-5)


@torch.library.custom_op("stablehlo_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(x + 1) * 3


def test_custom_operators_become_custom_calls() -> None:
    program = _export(Custom(), (torch.ones(3),))
    with pytest.raises(NotImplementedError, match=r"stablehlo_test::twice: .*custom_ops_allowed_in_graph"):
        stablehlo.exported_program_to_stablehlo(program)
    options = StableHLOExportOptions(custom_ops_allowed_in_graph={"stablehlo_test"})
    text = stablehlo.exported_program_to_stablehlo(program, options).get_stablehlo_text()
    assert "stablehlo.custom_call @stablehlo_test.twice" in text


class Drops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


def test_export_and_load_errors(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"draws random numbers.*model\.eval\(\)"):
        stablehlo.exported_program_to_stablehlo(_export(Drops(), (torch.ones(3),)))
    with pytest.raises(FileNotFoundError, match=r"no functions/\*\.meta"):
        StableHLOGraphModule.load(tmp_path)
    model, args, _, _ = CASES["decoder"]
    stablehlo.save_torch_model_as_stablehlo(
        model, args, tmp_path, StableHLOExportOptions(save_weights=False, override_tracing_kwargs={"half": True})
    )
    loaded = StableHLOGraphModule.load(tmp_path)
    with pytest.raises(TypeError, match=r"\['half'\] is False, but the program was exported with the constant True"):
        loaded(*args, half=False)
    with pytest.raises(TypeError, match=r"expected a dictionary of \['tokens', 'padding'\]"):
        loaded({"tokens": args[0]["tokens"]}, half=True)
    short = {name: value[:1] for name, value in args[0].items()}
    with pytest.raises(TypeError, match=r"argument \d is (int64|bool)\[1, 6\]; expected (int64|bool)\[2, 6\]"):
        loaded(short, half=True)
    with pytest.raises(KeyError, match="which was not saved"):
        loaded(*args, half=True)
    with pytest.raises(KeyError, match="unknown function 'backward'; available: forward"):
        loaded.evaluate("backward", args)


@pytest.mark.parametrize("damaged", ["data/weight", "functions/forward.meta"])
def test_corrupt_files_are_named(damaged: str, tmp_path: Path) -> None:
    stablehlo.save_as_stablehlo(_export(nn.Linear(4, 3), (torch.ones(2, 4),)), tmp_path)
    content = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=damaged):
        StableHLOGraphModule.load(tmp_path)


class Marked(nn.Module):
    """Two marked regions, the second in a Python loop, and unmarked operations around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        builder = StableHLOCompositeBuilder("lib.product", {"scale": 0.5, "count": 3, "kind": "full"})
        x, y = builder.mark_inputs(x, y)
        z = self.layer(x).relu() * y
        z, total = builder.mark_outputs(z, z.sum(0))
        for _ in range(2):
            part = StableHLOCompositeBuilder("lib.gelu")
            z = part.mark_outputs(nn.functional.gelu(part.mark_inputs(z + 1)))
        return z * total, total


def test_marked_regions_are_composites() -> None:
    model, arguments = Marked(), (torch.randn(2, 4), torch.randn(2, 4))
    program = torch.export.export(model, arguments)
    module = stablehlo.exported_program_to_stablehlo(program)
    text = module.get_stablehlo_text("forward")
    found = re.findall(r'stablehlo.composite "([\w.]+)" (.*?) \{composite_attributes = \{(.*?)\}', text)
    assert (found[0][0], len(found[0][1].split(", "))) == ("lib.product", 4)
    assert found[0][2] == 'count = 3 : i64, kind = "full", scale = 5.000000e-01 : f64'
    assert text.count('stablehlo.composite "lib.gelu"') == 2
    for got, expected in zip(module(*arguments), model(*arguments), strict=True):
        torch.testing.assert_close(got.cpu(), expected.detach())
    # Marks have no effect when a module runs, and jax writes no composites with dynamic sizes.
    for place in ("cpu", "xla"):
        x, y = (t.detach().to(place).requires_grad_() for t in arguments)
        copy.deepcopy(model).to(place)(x, y)[0].sum().backward()
        assert x.grad is not None and x.grad.abs().sum() > 0
    free = torch.export.export(model, arguments, dynamic_shapes=({0: Dim("n")}, {0: Dim("n")}))
    several = stablehlo.exported_program_to_stablehlo(free)
    assert 'composite "lib.' not in several.get_stablehlo_text("forward")
    with pytest.raises(TypeError, match=r"attribute a=\[1\]"):
        StableHLOCompositeBuilder("x", {"a": [1]})  # type: ignore[dict-item]


class Calling(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        first, second = stablehlo_custom_call(
            [x, x + 1], "lib.both", [(3, 2), ()], [torch.int32, torch.bfloat16], has_side_effect=True,
            backend_config="how", frontend_attributes={"a": "b"},
        )  # fmt: skip
        return first + 1, second


def test_custom_calls() -> None:
    program = torch.export.export(Calling(), (torch.randn(2, 4),))
    call = next(n for n in program.graph.nodes if "custom_call" in n.name)
    assert extract_custom_call_outputs_shape_dtype(call) == ([(3, 2), ()], [torch.int32, torch.bfloat16])
    exported = stablehlo.exported_program_to_stablehlo(program).get_stablehlo_text("forward")
    recorded = xm.get_stablehlo(list(Calling()(torch.ones(2, 4, device="xla"))))
    for text in (exported, recorded):
        (line,) = re.findall(r"stablehlo.custom_call @lib.both\(.*", text)
        parts = ('backend_config = "how"', "has_side_effect = true", '{a = "b"}', "(tensor<3x2xi32>, tensor<bf16>)")
        assert [part for part in parts if part not in line] == []
    one = stablehlo_custom_call([torch.ones(2, device="xla")], "lib.one", [(2,)], [torch.float32], api_version=4)
    with pytest.raises(RuntimeError, match=r"No FFI handler registered for lib\.one"):
        one.cpu()
    del one
    with pytest.raises(ValueError, match="got 2 shapes but 1 dtypes"):
        stablehlo_custom_call([], "x", [(1,), (2,)], [torch.float32])
    with pytest.raises(ValueError, match="api_version=5"):
        stablehlo_custom_call([], "x", [(1,)], [torch.float32], api_version=5)
