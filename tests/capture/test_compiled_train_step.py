"""torch.compile(train_step, backend="openxla"): losses of the CPU, one program for each step, few traced functions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STEPS = 5

# torch's own: dynamo imports inductor to trace an optimizer, and reads the gradient of the loss where it resumes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    met.clear_all()
    torch.manual_seed(0)


class _Gpt(nn.Module):
    """Two transformer blocks with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(17, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 17, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h)).flatten(0, 1)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def _vectors() -> Batch:
    return torch.randn(6, 8), torch.randint(0, 4, (6,))


def _texts() -> Batch:
    return torch.randint(0, 17, (2, 8)), torch.randint(0, 17, (16,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "mlp": (_mlp, _vectors),
    "gpt": (_Gpt, _texts),
}
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
}


def _train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return train_step


def _count(name: str) -> int:
    return met.counter_value(name) or 0


def _run(step: Step, batches: list[Batch]) -> tuple[list[float], list[int]]:
    """Return the losses, and how many programs each step launched, compiled or not."""
    losses, programs = [], []
    for x, y in batches:
        before = _count("ExecuteComputation") + _count("InterpretedGraphs")
        loss = step(x.to("xla"), y.to("xla")).detach()
        torch_xla.sync()
        programs.append(_count("ExecuteComputation") + _count("InterpretedGraphs") - before)
        losses.append(loss)
    return [float(loss) for loss in losses], programs


#: Dynamo traces a GPT for a long time: `make test` runs two optimizers, `make test-long` all.
PAIRS = [
    pytest.param(model, optimizer, marks=[pytest.mark.sweep] * (model == "gpt" and optimizer not in ("SGD", "AdamW")))
    for model in MODELS
    for optimizer in OPTIMIZERS
]


@pytest.mark.parametrize(("model", "optimizer"), PAIRS)
def test_one_program_for_each_step(model: str, optimizer: str) -> None:
    """Equal losses and parameters; one program each; from the third step on nothing is traced or compiled."""
    make_model, make_batch = MODELS[model]
    on_cpu, batches = make_model(), [make_batch() for _ in range(STEPS)]
    on_xla = copy.deepcopy(on_cpu).to("xla")
    cpu_step = _train_step(on_cpu, OPTIMIZERS[optimizer](on_cpu.parameters()))
    want = [float(cpu_step(x, y).detach()) for x, y in batches]
    step = torch.compile(_train_step(on_xla, OPTIMIZERS[optimizer](on_xla.parameters())), backend="openxla")
    got, programs = _run(step, batches[:3])
    frames, compiled = dict(torch._dynamo.utils.counters["frames"]), _count("UncachedSyncTensors")
    more, more_programs = _run(step, batches[3:])
    torch.testing.assert_close(got + more, want, rtol=1e-4, atol=1e-5)
    first = programs.pop(0)
    assert first == 1 or torch.__version__ < (2, 12), "dynamo of torch 2.11 reads the new states one by one"
    assert programs + more_programs == [1] * (STEPS - 1)
    assert torch._dynamo.utils.counters["frames"] == frames
    assert _count("UncachedSyncTensors") == compiled
    assert not _count("DynamoRunAsItIs")
    reads = {name: _count(name) for name in met.counter_names() if name.startswith("aten::")}
    assert reads == {"aten::_local_scalar_dense": STEPS}  # the losses, after the steps


def test_the_engine_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo makes a graph of the model and one of the optimizer, and traces no frame of torch_xla."""
    files: list[str] = []
    convert = torch._dynamo.convert_frame
    compile_frame = convert._compile

    def record(code: Any, *args: Any, **kwargs: Any) -> Any:
        files.append(code.co_filename)
        return compile_frame(code, *args, **kwargs)

    monkeypatch.setattr(convert, "_compile", record)
    model = _mlp().to("xla")
    step = torch.compile(_train_step(model, torch.optim.AdamW(model.parameters())), backend="openxla")
    _run(step, [_vectors()])
    assert len(files) >= 3 and [file for file in files if "/torch_xla/" in file] == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_step_counts_move_to_the_device() -> None:
    """As on CUDA: an optimizer that is compiled after eager steps becomes capturable, and eager steps continue."""
    model, x, y = _mlp(), *_vectors()
    on_xla = copy.deepcopy(model).to("xla")
    want, got = [
        (_train_step(m, o), o) for m, o in ((m, torch.optim.NAdam(m.parameters(), lr=1e-2)) for m in (model, on_xla))
    ]
    compiled = torch.compile(got[0], backend="openxla")
    for call in (got[0], compiled, compiled, got[0]):
        loss = call(x.to("xla"), y.to("xla"))
        torch.testing.assert_close(loss.detach().cpu(), want[0](x, y).detach(), rtol=1e-4, atol=1e-5)
        torch_xla.sync()
    assert got[1].param_groups[0]["capturable"] is True
    for state in got[1].state.values():
        assert {name: state[name].device.type for name in ("step", "mu_product")} == {
            "step": "xla",
            "mu_product": "xla",
        }
        assert state["step"].item() == 4


def test_a_graph_that_runs_as_it_is_names_the_line() -> None:
    """A boolean mask needs values: one warning for the step, with the line in the model and the reason."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            return h[h > 0]  # the line

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    line = Masked.forward.__code__.co_firstlineno + 2
    model = Masked().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        step = torch.compile(train_step, backend="openxla")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                step(torch.randn(6, 8).to("xla"))
                torch_xla.sync()
    found = [" ".join(str(w.message).split()) for w in caught if "operation by operation" in str(w.message)]
    assert len(found) == 1, found
    assert f"test_compiled_train_step.py:{line}" in found[0]
    assert "cause: " in found[0] and "fix: " in found[0]
    assert _count("DynamoRunAsItIs") >= 2


@pytest.mark.parametrize("is_tensor", [False, True])
def test_scheduled_learning_rate(is_tensor: bool) -> None:
    """A number is a constant of dynamo's graph: one warning. A tensor is traced once; the losses are the CPU's."""
    model, x, y = _mlp(), *_vectors()
    on_xla, losses, messages = copy.deepcopy(model).to("xla"), [], []
    for m in (model, on_xla):
        device = next(m.parameters()).device
        rate = torch.tensor(0.1, device=device) if is_tensor else 0.1
        optimizer = torch.optim.AdamW(m.parameters(), lr=rate, capturable=is_tensor and device.type == "xla")
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = _train_step(m, optimizer)
        step = step if device.type == "cpu" else torch.compile(step, backend="openxla")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frames = []
            for _ in range(4):
                losses.append(step(x.to(device), y.to(device)).detach().cpu())
                scheduler.step()
                frames.append(torch._dynamo.utils.counters["frames"]["total"])
        messages = [str(w.message) for w in caught if "the learning rate changed" in " ".join(str(w.message).split())]
    torch.testing.assert_close(losses[4:], losses[:4], rtol=1e-4, atol=1e-5)
    assert len(messages) == (0 if is_tensor else 1)
    assert (frames[1] == frames[3]) is is_tensor
