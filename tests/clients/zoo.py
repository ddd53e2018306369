"""Models of every kind, tiny and with random weights, trained for three steps on xla and on the CPU.

python -m tests.clients.zoo --output docs/project/model_coverage.md      writes the table of what came out
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_xla
from tests.support.helpers import Counts, counts, to

Batch = dict[str, Any]
STEPS, RATE = 3, 0.01


@dataclass
class Trained:
    """The losses, the state after the steps, that before them, and what moved in each step."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    before: dict[str, torch.Tensor]
    moved: list[Counts] = field(default_factory=list)

    @property
    def compilations(self) -> list[int]:
        return [moved.compilations for moved in self.moved]

    @property
    def fallbacks(self) -> set[str]:
        return set().union(*(moved.fallbacks for moved in self.moved))


def train(make: Callable[[], nn.Module], batch: Callable[[], Batch], device: str, double: bool = False) -> Trained:
    """Plain steps of SGD: one that divides by gradients would make much of those that are 0 but for rounding."""
    torch.manual_seed(0)
    dtype = torch.float64 if double else torch.float32
    model = without_chance(make().to(dtype)).train()
    torch.manual_seed(1)
    batches = [{name: _cast(value, dtype) for name, value in to(device, batch()).items()} for _ in range(STEPS)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    np.random.seed(0)  # noqa: NPY002  # what is masked in audio is drawn from it
    torch_xla.sync()
    losses, moves = [], []
    for given in batches:
        with counts() as moved:
            loss = loss_of(model(**given))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
        losses.append(loss.detach())
        moves.append(moved)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return Trained([loss.item() for loss in losses], state, before, moves)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def without_chance(model: nn.Module) -> nn.Module:
    """The model, whose layers drop nothing: devices draw other numbers."""
    for module in model.modules():
        for name in ("p", "drop_prob", "drop_rate"):
            chance = name == "drop_rate" or "Drop" in type(module).__name__
            if chance and isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def loss_of(output: Any) -> torch.Tensor:
    """The model's own loss, or a weighted sum of all that it gives."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss.mean()  # type: ignore[no-any-return]
    results = output.to_tuple() if hasattr(output, "to_tuple") else (output,)
    found = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point() and r.requires_grad]
    weights = [torch.arange(r.numel(), dtype=r.dtype).sin().view(r.shape).to(r.device) for r in found]
    return sum((r * w).mean() for r, w in zip(found, weights, strict=True))  # type: ignore[return-value]


def assert_same(got: Trained, expected: Trained) -> None:
    """Equal losses, and parameters and buffers that have moved by the same."""
    torch.testing.assert_close(torch.tensor(got.losses), torch.tensor(expected.losses), rtol=1e-4, atol=1e-6)
    assert got.state.keys() == expected.state.keys()
    changed = 0
    for name, wanted in expected.state.items():
        if not wanted.is_floating_point():
            assert torch.equal(got.state[name], wanted), name
            continue
        moved = (wanted - expected.before[name]).abs().amax().item() if wanted.numel() else 0.0
        changed += moved > 0
        torch.testing.assert_close(
            got.state[name], wanted, rtol=0, atol=1e-5 + 1e-3 * moved, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert changed > len(expected.state) / 4, "hardly anything has learned"


def assert_compiled_once(got: Trained, programs: int, why: str, again: str = "") -> None:
    """The first two steps compile no more than the parts of a step, the third nothing; unless there is a reason.

    ``again`` is one for the second step to compile one of them once more.
    """
    if why:
        assert got.compilations[-1] > 0, "it compiles nothing in the third step: the reason has to go"
        return
    if again:
        assert got.compilations[1:] == [1, 0], f"{got.compilations}: unless it is 1 in the second step, that has to go"
    else:
        assert sum(got.compilations) <= programs and got.compilations[-1] == 0, got.compilations
    assert {moved.executions for moved in got.moved} == {programs}, "the programs of a step"


def of_transformers(found: Any) -> Callable[[], nn.Module]:
    """What makes the model of a row of zoo_models.py."""
    import transformers

    def calm(config: Any) -> None:
        """Nothing is dropped by chance, in what it consists of neither."""
        for name, value in list(vars(config).items()):
            if isinstance(value, transformers.PretrainedConfig):
                calm(value)
            elif "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
            elif "drop" in name and isinstance(value, (list, tuple)):
                setattr(config, name, type(value)(0.0 for _ in value))

    def make() -> nn.Module:
        model = getattr(transformers, found.model)
        config = model.config_class(**found.config)
        calm(config)
        return model(config)  # type: ignore[no-any-return]

    return make


os.environ.setdefault("HF_HUB_OFFLINE", "1")
