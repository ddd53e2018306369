"""The table of docs/explanation/compilation_and_caching.md: what the first three steps of a training loop do."""

from __future__ import annotations

import json

import pytest

from tests.support.helpers import ROOT, run_script

PAGE = ROOT / "docs" / "explanation" / "compilation_and_caching.md"
_TITLE = "| policy | MLP, SGD | MLP, Adam | CNN, Adam | GPT, AdamW |"
_OPS = [23, 53, 105, 426]  # of the third step, as the page says

SCRIPT = """
import json
import logging
import torch
from torch import nn
from torch.nn import functional as F
import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine import recorder
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.execution import compile_policy

logging.getLogger("torch_xla.recompilation").setLevel(logging.ERROR)  # four models at one line


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words=32, width=16, length=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.head = nn.Sequential(Block(width), Block(width)), nn.Linear(width, words)

    def forward(self, x):
        positions = self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.blocks(self.tokens(x) + positions)).flatten(0, 1)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))


def cnn():
    features = nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 8, 5), nn.MaxPool2d(2), nn.ReLU()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 10))


def measure(model, make_optimizer, x, classes=10):
    model, x = model.to("xla"), x.to("xla")
    y = torch.zeros(x.numel() if x.dtype == torch.int64 else len(x), dtype=torch.int64).to("xla")
    optimizer, found = make_optimizer(model.parameters()), []
    compile_policy.reset()
    program_cache.cache.clear()
    for _ in range(4):
        met.clear_all()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        ops = recorder.bindings().collect(0).node_count
        torch_xla.sync()
        compiled = (met.metric_data("CompileTime") or [0])[0]
        counts = [met.counter_value("InterpretedGraphs") or 0, compiled, met.counter_value("CachedSyncTensors") or 0]
        assert sum(counts) == 1, counts
        found.append(["interpret", "compile", "run"][counts.index(1)])
    assert found.pop() in ("run", "interpret")
    return ops, ", ".join(found)


print(json.dumps([
    measure(mlp(), lambda p: torch.optim.SGD(p, lr=0.1), torch.randn(4, 8)),
    measure(mlp(), torch.optim.Adam, torch.randn(4, 8)),
    measure(cnn(), torch.optim.Adam, torch.randn(2, 1, 28, 28)),
    measure(GPT(), torch.optim.AdamW, torch.zeros(2, 8, dtype=torch.int64)),
]))
"""


def _rows() -> dict[str, list[str]]:
    """Return the cells of the table by policy."""
    text = PAGE.read_text()
    _, _, *lines = text[text.index(_TITLE) :].partition("\n\n")[0].splitlines()
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {policy.split("`")[1]: steps for policy, *steps in cells}


def test_every_policy_has_a_row() -> None:
    assert set(_rows()) == {"auto", "compile", "eager"}


@pytest.mark.parametrize("policy", _rows())
def test_first_steps(policy: str) -> None:
    """The counters of four training loops are those that the page states."""
    done = run_script(SCRIPT, TORCH_XLA_COMPILE_POLICY=policy, XLA_PERSISTENT_CACHE_PATH="")
    ops, steps = zip(*json.loads(done.stdout), strict=True)
    assert (list(ops), list(steps)) == (_OPS, _rows()[policy])
