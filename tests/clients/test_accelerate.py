"""accelerate: loops in each precision, accumulation, clipping, checkpoints, evaluation, launchers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
from tests.clients import checks

accelerate = checks.library("accelerate")
safetensors = checks.library("safetensors.torch")

ROWS, BATCH = 4 * 10 + 2, 4  # eleven batches; the last one is short


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


def data() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(ROWS, 8), torch.arange(ROWS) % 4)


def accelerator(**options: Any) -> Any:
    """A new one: its state is the process's."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    return accelerate.Accelerator(**options)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """With state, and with steps as small as gradients are: Adam's are as large for what is only rounded."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def prepared(runs: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
    model = network()
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
    return runs.prepare(model, optimizer, DataLoader(data(), batch_size=BATCH), schedule)  # type: ignore[no-any-return]


#: By the name, what it computes in, and how close the losses are to those of the CPU in the same precision.
PRECISIONS = {"no": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 5e-3), "fp16": (torch.float16, 1e-3)}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_loop(precision: str, accumulate: int) -> None:
    runs = accelerator(mixed_precision=precision, gradient_accumulation_steps=accumulate)
    model, optimizer, loader, schedule = prepared(runs)
    losses, steps = [], 0
    with checks.on_xla(model) as moved:
        for batch in loader:
            with runs.accumulate(model):
                loss = loss_of(model, batch)
                runs.backward(loss)
                if runs.sync_gradients:
                    runs.clip_grad_norm_(model.parameters(), 1.0)
                    steps += 1
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    oracle = network()
    dtype, close = PRECISIONS[precision]
    expected = checks.replay(
        oracle, list(DataLoader(data(), batch_size=BATCH)), optimizer_of(oracle),
        lambda batch: loss_of(oracle, batch), accumulate, clip=1.0, precision=dtype,
    )  # fmt: skip
    checks.assert_close(losses, expected, rtol=close, atol=close)
    assert steps == -(-11 // accumulate), "the last group is not full, and is stepped"
    assert moved.compilations <= (6 if precision == "fp16" else 4) * accumulate


def test_precision_of_what_a_model_computes() -> None:
    runs = accelerator(mixed_precision="bf16")
    seen = []
    model = network()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    model = runs.prepare(model)
    out = model(torch.ones(2, 8, device=runs.device))
    assert (seen, out.dtype) == ([torch.bfloat16], torch.float32), "accelerate gives float32 back"


def test_evaluation_counts_each_row_once() -> None:
    runs = accelerator()
    model, _, loader, _ = prepared(runs)
    for _ in range(3):  # whichever thread reads the loader
        rows = [runs.gather_for_metrics((model(x).argmax(-1), y)) for x, y in loader]
        assert torch.cat([y for _, y in rows]).cpu().tolist() == data().tensors[1].tolist()


def test_states_and_models_on_disk(tmp_path: Path) -> None:
    """Half of a run, saved and loaded, goes on as the whole one does."""

    def half(runs: Any, parts: Any, batches: Any) -> None:
        model, optimizer, _, schedule = parts
        for batch in batches:
            torch_xla.sync()  # that of a prepared loader
            runs.backward(loss_of(model, [t.to(runs.device) for t in batch]))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    batches: Any = list(DataLoader(data(), batch_size=BATCH))[:6]
    runs = accelerator()
    parts = prepared(runs)
    half(runs, parts, batches[:3])
    runs.save_state(str(tmp_path / "state"))
    kept = copy.deepcopy({name: value.cpu() for name, value in parts[0].state_dict().items()})
    runs.save_model(parts[0], str(tmp_path / "model"))
    half(runs, parts, batches[3:])

    again = accelerator()
    new = prepared(again)
    again.load_state(str(tmp_path / "state"))
    checks.assert_lives_on_xla(new[0])
    half(again, new, batches[3:])
    checks.assert_same_state(new[0], parts[0], rtol=0, atol=0)

    on_disk = safetensors.load_file(tmp_path / "model" / "model.safetensors")
    assert {name: value.tolist() for name, value in on_disk.items()} == {n: v.tolist() for n, v in kept.items()}


LAUNCHES = {
    "launch": (1, []),
    "launch, tpu": (2, ["--tpu", "--num_processes", "2", "--main_training_function", "main"]),
    "launch, tpu, four": (4, ["--tpu", "--num_processes", "4", "--main_training_function", "main"]),
    "launch, torchrun's way": (2, ["--multi_gpu", "--num_processes", "2"]),
}


def plain() -> list[float]:
    from tests.clients import accelerate_program as same

    model = same.network()
    batches = list(DataLoader(same.data(), batch_size=same.BATCH)) * 2
    checks.replay(model, batches, torch.optim.SGD(model.parameters(), lr=0.5), lambda batch: loss_of(model, batch))
    return model.weight.flatten().tolist()  # type: ignore[union-attr, operator]


def check_told(told: list[Any], processes: int) -> None:
    (one,) = told  # only the main process prints
    weight = one.pop("weight")
    assert one == {"processes": processes, "device": "xla:0", "gathered": list(range(processes)), "evaluated": 16}
    checks.assert_close(weight, plain())


@pytest.mark.parametrize("name", LAUNCHES)
def test_launchers(name: str) -> None:
    processes, options = LAUNCHES[name]
    script = str(checks.ROOT / "tests" / "clients" / "accelerate_program.py")
    check_told(checks.run([checks.command_of("accelerate"), "launch", *options, script], processes), processes)


def test_notebook_launcher() -> None:
    check_told(checks.program("accelerate_program", "2", devices=2), 2)
