"""Ahead-of-time compilation: memory and cost of programs, and the reports of the command.

The counts are compared with jax and with known costs of programs, on a target that is this machine's CPU. Tests that
require libtpu or jax's CUDA plugin are skipped without them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax import lax
from torch import nn

import torch_xla
from tests.support import scripts
from tests.support.helpers import run_script
from torch_xla import aot
from torch_xla._engine import recorder
from torch_xla._engine.aot import (
    hardware_specs,
    program_analysis,
    program_collector,
    retarget,
    target_compiler,
    targets,
)
from torch_xla._engine.aot.target_compiler import DoesNotFitError, ProgramPlacement, TargetError
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.graph import graph_spec
from torch_xla.aot import command, report_data, report_html, report_text

TPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'jax[tpu]'"
)
GPU = pytest.mark.skipif(
    not any(importlib.util.find_spec(p) for p in ("jax_cuda12_plugin", "jax_cuda13_plugin")),
    reason="jax's CUDA plugin is not installed: pip install 'jax[cuda12]'",
)
ACCELERATORS = [pytest.param("v5e", marks=TPU), pytest.param("h100", marks=GPU)]


@pytest.fixture(scope="module")
def here() -> Target:
    """A target whose compiler is that of this machine's CPU."""
    return Target("here", "cpu", hardware_specs.GPUS["h100"], tuple(jax.local_devices(backend="cpu")))


def recorded(make: Callable[[], Any]) -> graph_spec.GraphSpec:
    """Return the graph that ``make`` records, without running it."""
    torch_xla.sync()
    results = make()
    spec = graph_spec.describe_graph(recorder.bindings().collect(0))
    del results
    return spec


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 6 * 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.conv(x)).flatten(1))


def training() -> graph_spec.GraphSpec:
    """Return the graph of a training step of Net; ``test_a_training_step`` counts its products."""
    net = Net().to("xla")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = torch.randn(8, 1, 8, 8, device="xla"), torch.zeros(8, dtype=torch.int64, device="xla")

    def step() -> Any:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss, net, optimizer

    torch_xla.sync()
    return recorded(step)


@pytest.mark.parametrize("name", ["here", *ACCELERATORS])
def test_a_training_step(name: str, here: Target) -> None:
    """A training step compiles for every target; the products are those of the model."""
    target = here if name == "here" else targets.get_target(name)
    spec = training()
    compiled = target_compiler.compile_for_target(target_compiler.lower_for_target(spec, target), spec)
    found = program_analysis.analyze_program(compiled)
    conv, fc = 2 * 8 * 4 * 36 * 9, 2 * 8 * 4 * 36 * 3
    assert found.work.products == pytest.approx(2 * conv + 3 * fc)
    assert found.work.seconds > 0 and 0 < found.work.utilisation < 1
    assert found.memory.peak >= found.memory.arguments > 0
    assert found.memory.aliased > 0  # parameters are updated in place
    assert found.collectives == ()


def test_source_lines_of_the_target_only(here: Target) -> None:
    """Programs for a target have the user's lines, programs of this process only if XLA_HLO_DEBUG asks for them."""

    def dumped() -> str:
        return torch_xla._XLAC._get_xla_tensors_hlo([torch.ones(3, device="xla") * 5])

    assert "source_file" not in dumped()
    assert "test_aot.py" in aot.compile(lambda x: x * 5, torch.ones(3), target=here).hlo()
    assert "source_file" not in dumped()


def test_dtypes_of_a_target(here: Target) -> None:
    """float64 is float32 in a program for a TPU, independent of the storage dtypes of this process's devices."""
    spec = recorded(lambda: torch.ones(3, dtype=torch.float64, device="xla") * torch.arange(3, device="xla"))
    as_tpu = Target("tpu", "tpu", hardware_specs.TPUS["v5e"], here.devices)
    assert "xf64>" in target_compiler.lower_for_target(spec, here).text()
    assert "tensor<3xf64>" not in target_compiler.lower_for_target(spec, as_tpu).text()
    assert dtypes.storage_numpy_dtype(torch.float64) == np.float64


def test_compile_error_dumps_the_program(here: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler error names the program and a file with its StableHLO."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = recorded(lambda: torch.ones(3, device="xla") + 1)
    lowered = target_compiler.lower_for_target(spec, here)
    texts = {
        "INTERNAL: oh": (TargetError, 0, 0),
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (64.00G) exceeds "
        "available HBM (15.75G).": (DoesNotFitError, 64 << 30, 63 << 28),
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 26.50G of "
        "15.75G hbm. Exceeded hbm capacity by 10.75G.": (DoesNotFitError, 53 << 29, 63 << 28),
    }
    for text, (kind, required, capacity) in texts.items():

        class Stage:
            as_text = lowered.stage.as_text

            def compile(self, text: str = text) -> None:
                raise jax.errors.JaxRuntimeError(text)

        begun: list[Path] = []
        with pytest.raises(kind, match=r"target here: compiling a graph of \d ops? at train.py:7: ") as caught:
            target_compiler.compile_for_target(
                target_compiler.TargetProgram(here, Stage(), 1), spec, "train.py:7", begun.append
            )  # type: ignore[arg-type]
        assert caught.value.file == begun[0] and begun[0].read_text() == lowered.text()
        if isinstance(caught.value, DoesNotFitError):
            assert (caught.value.required_bytes, caught.value.capacity_bytes) == (required, capacity)
            assert caught.value.excludes_arguments == ("temporaries" in text)


@pytest.mark.parametrize("name", ["", "v9", "v5e:", "v5e:2y2", "h100:2x2", "cpu", "v5e:2x2x2x2", "../v5e"])
def test_no_target(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected a TPU with a topology, e.g. v5e:2x2"):
        targets.get_target(name)


@pytest.mark.parametrize(("name", "extra"), [("v5e", "tpu"), ("h100", "cuda12")])
def test_missing_compiler(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(targets.MissingCompilerError, match=rf"pip install 'jax\[{extra}\]'"):
        targets.get_target.__wrapped__(name)


@TPU
@pytest.mark.parametrize(
    ("name", "count", "hosts"),
    [("v5e", 1, 1), ("v5e:2x1", 2, 1), ("v5e:4x4", 16, 4), ("v4:2x2x1", 4, 1), ("v5p:4x4x4", 64, 16), ("v6e:8", 8, 1)],
)
def test_topologies(name: str, count: int, hosts: int) -> None:
    if name == "v6e:8":
        with pytest.raises(ValueError, match="libtpu does not support this topology"):
            targets.get_target(name)
        return
    found = targets.get_target(name)
    assert (len(found.devices), found.hosts, found.platform) == (count, hosts, "tpu")


@GPU
@pytest.mark.parametrize("name", [*hardware_specs.GPUS, "h100:8"])
def test_gpus(name: str) -> None:
    found = targets.get_target(name)
    assert len(found.devices) == (8 if name == "h100:8" else 1)
    assert found.devices[0].device_kind == found.chip.title


def report_on(target: Target, script: Callable[[], None], steps: int | None = None) -> dict[str, Any]:
    """Run a function and return the report on its programs."""
    collector = program_collector.ProgramCollector(target, steps)
    with collector.collecting():
        script()
    for seen in collector.programs:
        seen.compile(lambda file: None)
    return report_data.build_report(collector, None)


def test_the_report_on_a_loop(here: Target, cold: None) -> None:
    """The report lists each distinct program once, with line, sync reason, runs and the lines of its operations."""
    torch_xla.sync()

    def script() -> None:
        net = Net().to("xla")
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            loss = F.cross_entropy(net(torch.randn(8, 1, 8, 8).to("xla")), torch.zeros(8, dtype=torch.int64).to("xla"))
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        with warnings.catch_warnings():  # the fallback warns once in a process
            warnings.filterwarnings("ignore", ".*masked_select at ", UserWarning)
            torch.masked_select(loss, loss > 0)
        torch_xla.sync()

    data = report_on(here, script)
    assert data["fits"] and command.exit_code(data) == 0
    rows = data["programs"]
    assert [row["runs"] for row in rows][:2] in ([1, 3], [4, 1])
    assert all(row["line"].startswith(__file__) and row["error"] is None for row in rows)
    assert rows[0]["cause"] == "user torch_xla.sync"
    expensive = [found["op"] for found in rows[0]["expensive"]]
    assert any(op.startswith(("Net/", "backward/Net/")) for op in expensive), expensive
    assert any(found["line"].startswith(__file__) for found in rows[0]["expensive"])
    modules = {found["module"]: found for found in rows[0]["modules"]}
    assert next(iter(modules)) == "Net" and 0 < modules["Net"]["backward"] < modules["Net"]["seconds"]
    inside = [found["seconds"] for name, found in modules.items() if name.count("/") == 1]
    assert inside and sum(inside) <= modules["Net"]["seconds"] * 1.0001
    assert "" in modules, "the loss and the optimizer"
    assert "aten::masked_select" in [row["op"] for row in data["fallbacks"]]
    text, page = report_text.render_text(data), report_html.render_html(json.loads(json.dumps(data)))
    assert "  Net (" in text and "outside of modules" in text and "with submodules and backward" in page
    assert "fits: " in text and "user torch_xla.sync" in text and "Program 1" in page
    assert "the script uses 1 of 1 chip" in text and f"torch {torch.__version__}, " in text and "\ncommand: " in text
    assert 'class="bottleneck ok"' in page and 'class="bottleneck problem"' not in page, "red means bad"
    assert set(rows[0]["bound"]) == {"compute", "memory", "collectives"}
    assert re.search(r"bound by (compute|memory bandwidth) \(estimate of each alone: compute ", text)
    assert f"{shorten_paths(__file__)}:" in text and __file__ not in text, "relative paths"
    assert "\n  source      torch_xla.sync()\n" in text


def test_program_that_does_not_fit(here: Target) -> None:
    """For a program that exceeds the chip's memory, the report lists the largest buffers; the exit code is 3."""
    small = Target(
        "small",
        "cpu",
        hardware_specs.ChipSpec("s", "small", {"bf16": 1.0, "f32": 1.0}, 1 << 20, 1.0, 1.0, ""),
        here.devices,
    )

    def script() -> None:
        x = torch.ones(512, 1024, device="xla")
        torch_xla.sync()
        x += 1
        torch_xla.sync()

    data = report_on(small, script)
    assert not data["fits"] and command.exit_code(data) == 3
    row = data["programs"][-1]["memory"]
    assert row["required_bytes"] >= 2 << 20 and row["updated"] == 2 << 20
    assert row["largest"][0]["what"].startswith("argument float32[512, 1024]")
    # Tensors of other tests may be alive.
    assert re.search(r"does not fit: needs \d+\.\d\dMB, has 1\.00MB", report_text.render_text(data))


def test_steps_end_a_script(here: Target) -> None:
    def script() -> None:
        for _ in range(100):
            torch.ones(2, device="xla").add_(1)
            torch_xla.sync()

    collector = program_collector.ProgramCollector(here, 3)
    with pytest.raises(program_collector.StepLimitReached), collector.collecting():
        script()
    assert collector.barriers == 3


def test_collecting_ends_with_the_block(here: Target) -> None:
    collector = program_collector.ProgramCollector(here)
    with pytest.raises(KeyError), collector.collecting():
        raise KeyError
    torch_xla.sync()
    torch.ones(2, device="xla").add_(1).cpu()
    assert collector.programs == []


def test_mesh_larger_than_the_target(here: Target) -> None:
    """Retargeting a mesh with more devices than the target raises."""
    mesh = jax.sharding.Mesh(np.array(here.devices[:1] * 1), ("x",))
    moved = target_compiler._RetargetSharding(Target("none", "cpu", here.chip, ()))
    with pytest.raises(ValueError, match=r"target none has 0 devices, the program's mesh {'x': 1} needs 1"):
        moved(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    assert ProgramPlacement().replica_group is None


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*scripts.PYTHON, "-m", "torch_xla.aot", *args],
        cwd=cwd or scripts.ROOT,
        env=scripts.environment() | scripts.server_variables(),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "v9", __file__), "target 'v9': expected a TPU with a topology"),
        (("x.py",), "--target"),
        (("--target", "v5e", "--steps", "0", __file__), "--steps: 0: expected at least 1"),
    ],
)
def test_wrong_command_lines(args: tuple[str, ...], message: str) -> None:
    done = run(*args)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


SCRIPT = """
import sys, torch, torch_xla
assert __name__ == "__main__" and sys.argv[1:] == ["--size", "4"]
x = torch.ones(4, 4).to("xla")
for _ in range(5):
    x = x @ x / 4
    torch_xla.sync()
print("sum", x.sum().item())
"""


@TPU
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run("--target", "v5e:2x2", "--json", "r.json", "--html", "r.html", "train.py", "--size", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sum 16.0" in done.stdout and "fits: " in done.stdout
    data = json.loads((tmp_path / "r.json").read_text())
    assert [row["runs"] for row in data["programs"]] == [5, 1]
    assert "Program 2" in (tmp_path / "r.html").read_text()


@TPU
def test_a_script_that_fails(tmp_path: Path) -> None:
    """The report covers the programs that ran before the failure."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch, torch_xla
        x = torch.ones(4).to("xla") + 1
        torch_xla.sync()
        raise KeyError("mine")
        """)
    )
    done = run("--target", "v5e", "train.py", cwd=tmp_path)
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    assert "the script raised KeyError: 'mine'" in done.stdout and "Program 1" in done.stdout


@TPU
def test_program_larger_than_a_tpu(tmp_path: Path) -> None:
    """64 GB on a chip of 16 GB: nothing is allocated here, compilation fails, and the command reports the memory."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch, torch_xla
        x = torch.ones(1 << 16, 1 << 17, device="xla")
        torch_xla.sync()
        x = x.sort(1)[0]
        torch_xla.sync()
        """)
    )
    done = run("--target", "v5e", "--abstract", "train.py", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "does not fit (program" in done.stdout and "has 15.75GB" in done.stdout
    assert "argument float32[65536, 131072] (result)" in done.stdout


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("name", ["here", *ACCELERATORS])
def test_the_library(name: str, here: Target, tmp_path: Path) -> None:
    """``aot.compile`` compiles the operations of one call; they are pending afterwards, with correct results."""
    target = here if name == "here" else targets.get_target(name)
    net, reference = Net().to("xla"), Net()
    reference.load_state_dict({n: v.cpu() for n, v in net.state_dict().items()})
    batch = torch.randn(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (net, reference)]
    found = aot.compile(train_step, net, optimizers[0], *batch, target=target)
    conv, fc = 2 * 8 * 4 * 36 * 9, 2 * 8 * 4 * 36 * 3
    assert found.cost.products == pytest.approx(2 * conv + 3 * fc)
    assert found.fits and found.collectives == () and found.target is target
    assert "stablehlo.convolution" in found.stablehlo() and "ENTRY" in found.hlo() and __file__ in found.hlo()
    train_step(reference, optimizers[1], *batch)
    for actual, other in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual.cpu(), other, rtol=1e-4, atol=1e-5)
    assert len(found.serialize()) > 1000
    assert found.fill_cache(tmp_path) is not None and len(list(tmp_path.iterdir())) == 1


def test_nothing_to_compile(here: Target) -> None:
    with pytest.raises(ValueError, match="the function records nothing on xla:0"):
        aot.compile(lambda: None, target=here)


def test_a_loaded_program_runs(here: Target) -> None:
    found = aot.compile(lambda x: x * 2 + 1, torch.arange(4.0), target=here)
    with jax.enable_x64(True):
        loaded = aot.load(found.serialize())
        results = loaded(np.zeros(0), np.full(1, 2), np.arange(4, dtype=np.float32))
    assert [r.tolist() for r in results] == [[1.0, 3.0, 5.0, 7.0]]


@pytest.mark.parametrize("kind", ["step", "SPMD"])
def test_a_filled_cache_is_used(kind: str, tmp_path: Path) -> None:
    """If the target is this machine, a process on this machine finds the exported programs in the cache."""
    code = """
        import sys
        from pathlib import Path
        import jax, torch, torch_xla
        from tests.support.helpers import counts
        from torch_xla._engine.aot import hardware_specs, cache_export, program_collector
        from torch_xla._engine.aot.targets import Target
        from torch_xla._engine.device import devices
        import numpy as np, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
        if SPMD:
            xr.use_spmd()
        def script():
            x = torch.ones(8, 8).to("xla")
            if SPMD:
                xs.mark_sharding(x, xs.Mesh(np.arange(4), (4,), ("a",)), ("a", None))
            x *= 3
            torch_xla.sync()
            return x
        if FILL:
            target = Target("here", "cpu", hardware_specs.GPUS["h100"], devices.devices())
            collector = program_collector.ProgramCollector(target)
            with collector.collecting():
                script()
            for seen in collector.programs:
                seen.compile(lambda file: None)
                assert seen.error is None, seen.error
                cache_export.write_to_cache(Path("FOLDER"), seen.compiled)
        else:
            with counts() as moved:
                assert script().sum().item() == 192
            print(moved["PersistentCacheHit"])
    """
    code = code.replace("SPMD:", f"{kind == 'SPMD'}:").replace("FOLDER", str(tmp_path))
    run_script(code.replace("if FILL", "if True"), CPU_NUM_DEVICES="4")
    assert list(tmp_path.iterdir())
    cached = {"CPU_NUM_DEVICES": "4", "XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    done = run_script(code.replace("if FILL", "if False"), **cached)
    assert int(done.stdout) >= 1


def test_devices_without_values() -> None:
    """In abstract mode nothing is computed or allocated: a model of 80 GB trains; reads are zeros, and are counted."""
    run_script("""
        import json, resource
        import jax, torch, torch.nn.functional as F, torch_xla
        from torch import nn
        from torch_xla._engine.aot import hardware_specs, program_collector
        from torch_xla._engine.aot.targets import Target
        from torch_xla._engine.device import abstract_device, devices
        from torch_xla.aot import report_data
        abstract_device.enable()
        target = Target("here", "cpu", hardware_specs.GPUS["h100"], devices.devices())
        collector = program_collector.ProgramCollector(target)
        with collector.collecting():
            with torch.device("xla"):
                model = nn.Sequential(*[nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(5)])
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                loss = model(torch.randn(4, 1 << 16).to("xla")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                torch_xla.sync()
                assert loss.item() == 0 and loss.shape == ()
            y = torch.ones(3, device="xla")
            assert (y + 1).tolist() == [0, 0, 0] and y.to("cpu").dtype == torch.float32
            torch_xla.sync()
        data = report_data.build_report(collector, None)
        step = data["programs"][-2] if len(data["programs"]) > 2 else data["programs"][-1]
        assert not data["fits"] and data["abstract"], data
        updated = [row["memory"]["updated"] for row in data["programs"]]
        assert 5 * 4 * 2**32 in updated, updated
        assert sum(row["per_step"] for row in data["reads"]) > 0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
    """)


def test_results_of_ops_with_several() -> None:
    """In abstract mode each result of an op has its own shape and dtype, and so have values computed from it."""
    run_script("""
        import torch, torch_xla
        from torch_xla._engine.device import abstract_device
        abstract_device.enable()
        x = torch.ones(3, 5, device="xla")
        values, places = x.max(1)
        chunks = x.split([1, 4], 1)
        conv = torch.nn.Conv2d(2, 4, 3).to("xla")
        conv(torch.ones(1, 2, 8, 8, device="xla")).sum().backward()
        torch_xla.sync()
        assert places.cpu().dtype == torch.int64 and (places + 1).cpu().shape == (3,)
        assert [chunk.cpu().shape for chunk in chunks] == [(3, 1), (3, 4)]
        assert [p.grad.cpu().shape for p in conv.parameters()] == [(4, 2, 3, 3), (4,)]
    """)


@pytest.mark.parametrize("compiler", ["the target's compiler", "the CPU's"])
def test_spmd_without_values(compiler: str) -> None:
    """In abstract mode, marked tensors retain their shardings from step to step, and are sharded over the target.

    The shardings of unannotated outputs come from the target's compiler, or from the CPU's if that fails.
    """
    run_script(
        """
        import jax, numpy as np, torch, torch_xla
        import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
        from torch_xla._engine.aot import hardware_specs, program_collector
        from torch_xla._engine.aot.targets import Target
        from torch_xla._engine.device import abstract_device, devices
        xr.use_spmd()
        target = Target("here", "cpu", hardware_specs.GPUS["h100"], devices.devices())
        collector = program_collector.ProgramCollector(target)
        from_target = COMPILER == "the target's compiler"
        abstract_device.enable(collector.result_shardings if from_target else None)
        with collector.collecting():
            w = torch.ones(64, 64).to("xla")
            xs.mark_sharding(w, xs.Mesh(np.arange(4), (4,), ("a",)), ("a", None))
            momentum = w * 2  # unannotated: the compiler chooses its sharding
            torch_xla.sync()
            for _ in range(3):
                momentum += w
                w += (w @ momentum).sum()
                torch_xla.sync()
        assert [seen.found is not None for seen in collector.programs] == [from_target, False], collector.programs
        step = collector.programs[-1]
        assert [a.bytes for a in step.arguments] == [64 * 64 * 4 // 4] * 2, step.arguments
        assert step.runs >= 2 and step.lowered.chips == 4
        step.compile(lambda file: None)
        assert step.error is None and step.found.collectives, step.error
        """.replace("COMPILER", repr(compiler)),
        CPU_NUM_DEVICES="4",
    )


def test_retarget_constraints_inside_jax_functions(here: Target) -> None:
    """Sharding constraints at any depth are mapped to the target's devices; jaxprs without them remain unchanged."""
    meshes = {name: jax.sharding.Mesh(np.array(here.devices[:1]), (name,)) for name in ("actual", "other")}
    shardings = {
        name: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(name)) for name, mesh in meshes.items()
    }

    def marked(x: jax.Array) -> jax.Array:
        mark = lambda c, y: (lax.with_sharding_constraint(c + y, shardings["actual"]), c)
        return lax.cond(x[0, 0] > 0, jax.jit(lambda x: lax.scan(mark, x[0], x)[0]), lambda x: x[0], x)

    traced = jax.jit(marked).trace(jax.ShapeDtypeStruct((4, 8), np.float32))
    closed = retarget.retarget_jaxpr(traced, lambda sharding: shardings["other"])
    assert closed is not None and "'actual'" in str(traced.jaxpr) and "'actual'" not in str(closed)
    assert "'other'" in str(closed) and str(closed).count("scan[") == 1
    plain = jax.jit(lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x)[0]).trace(
        jax.ShapeDtypeStruct((4, 8), np.float32)
    )
    assert retarget.retarget_jaxpr(plain, lambda sharding: shardings["other"]) is None


def test_scripts_see_the_device_type_of_the_target() -> None:
    """Device types are the target's, regardless of PJRT_DEVICE; values are computed on this machine."""
    out = run_script(
        """
        import os, torch, torch_xla
        from torch_xla._engine.device import devices, matmul_precision
        devices.emulate_device("tpu", "TPU v5 lite")
        os.environ["PJRT_DEVICE"] = "TPU"
        import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
        assert xr.device_type() == "TPU" and xm.xla_device_hw("xla:0") == "TPU", xr.device_type()
        assert xm.xla_device_kind("xla:0") == "TPU v5 lite" and xm.xla_real_devices(["xla:0"]) == ["TPU:0"]
        on = {name: matmul_precision.precision_for_platform(name) for name in ("tpu", "cpu")}
        assert matmul_precision.current_precision() == on["tpu"] != on["cpu"]
        print((torch.ones(3, device="xla") + 1).tolist(), xr.device_type())
        """
    ).stdout
    assert "[2.0, 2.0, 2.0] TPU" in out


#: Spawns a process per device; the results are those of equal replicas.
PROCESSES = """
import torch, torch_xla
import torch.distributed as dist, torch.nn.functional as F
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp

def run(index, seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 10).to("xla")
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        x, y = torch.randn(8, 64).to("xla"), torch.zeros(8, dtype=torch.long).to("xla")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
    print("world", xr.world_size(), xr.global_ordinal(), xm.mesh_reduce("tag", 2.0, sum))
    print("sum", xm.all_reduce("sum", torch.ones(2, device="xla")).tolist())
    print("gathered", xm.all_gather(torch.ones(1, 2, device="xla")).tolist())
    dist.init_process_group("xla", init_method="xla://")
    actual = torch.ones(2, device="xla")
    dist.all_reduce(actual)
    print("dist", dist.get_world_size(), actual.tolist())

if __name__ == "__main__":
    xmp.spawn(run, (0,))
"""


@pytest.mark.parametrize("chips", [4, 256])
@pytest.mark.parametrize("values", [True, False])
def test_processes_of_a_script(chips: int, values: bool, tmp_path: Path) -> None:
    """Only the first process runs, with the world size of the target; it simulates all of them without collectives."""
    (tmp_path / "train.py").write_text(PROCESSES)
    out = run_script(
        f"""
        import runpy
        from torch_xla._engine.base.settings import settings
        settings.export("CPU_NUM_DEVICES", "{chips}")
        from torch_xla._engine.aot import hardware_specs, program_collector
        from torch_xla._engine.aot.targets import Target
        from torch_xla._engine.device import abstract_device, devices
        devices.emulate_device("tpu", "TPU v5 lite")
        target = Target("here", "cpu", hardware_specs.TPUS["v5e"], devices.devices())
        collector = program_collector.ProgramCollector(target)
        if not {values}:
            abstract_device.enable(collector.result_shardings)
        with collector.collecting():
            runpy.run_path({str(tmp_path / "train.py")!r}, run_name="__main__")
        (step,) = (seen for seen in collector.programs if seen.runs > 2)
        step.compile(lambda file: None)
        (gradients,) = step.found.collectives
        print("step", step.lowered.chips, gradients.kind, gradients.group, gradients.bytes)
        """
    ).stdout
    one = float(values)
    assert f"world {chips} 0 {2.0 * chips}" in out
    assert f"sum {[one * chips] * 2}" in out and f"dist {chips} {[one * chips] * 2}" in out
    assert f"gathered {[[one, one]] * chips}" in out
    assert f"step {chips} all-reduce {chips} {4 * 650:.1f}" in out
