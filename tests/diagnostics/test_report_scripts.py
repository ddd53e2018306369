"""The report of real scripts: each gets exactly its diagnosis, in a fresh process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import run_script

_HEAD = """
    import json, logging, time, warnings
    import torch, torch_xla
    from torch import nn
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(),
                          nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def train(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        return loss.detach(), out.detach()
    def batch(size):
        return torch.randn(size, 64).to("xla"), torch.randint(10, (size,)).to("xla")
"""
_TAIL = """
    print(json.dumps(torch_xla.debug.report().as_dict()))
"""
#: Loop of the script, environment, and the problems of its report.
SCRIPTS: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "healthy": (
        """
    losses = [train(*batch(512))[0] for _ in range(15)]
    print(f"mean loss {torch.stack(losses).mean().item():.1f}"[:9])
        """,
        {}, set(),
    ),
    "healthy, short": ("""
    for _ in range(8):
        train(*batch(512))
        """, {}, set()),
    "healthy, every graph compiled": ("""
    for _ in range(8):
        train(*batch(512))
        """, {"TORCH_XLA_COMPILE_POLICY": "compile"}, set()),
    "masks": (
        """
    for step in range(30):
        x, y = batch(100 + 7 * step)
        mask = x[:, 0] > 0.2
        train(x[mask], y[mask])
        """,
        {}, {"interpreted", "fallback"},
    ),
    "ragged": ("""
    for step in range(30):
        train(*batch(100 + 7 * step))
        """, {}, {"interpreted"}),
    "recompiling": ("""
    for step in range(24):
        train(*batch(64 + step // 2))
        """, {"TORCH_XLA_COMPILE_POLICY": "compile"}, {"compile-bound"}),
    "reads": ("""
    for _ in range(30):
        loss, out = train(*batch(64))
        loss.item(); loss.item(); out.sum().item(); out.max().item()
        """, {}, {"read"}),
    "slow loader": (
        """
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 20
        def __getitem__(self, i):
            time.sleep(0.1)
            return torch.randn(64, 64), torch.randint(10, (64,))
    for x, y in torch.utils.data.DataLoader(Slow(), batch_size=None):
        train(x.to("xla"), y.to("xla"))
        """,
        {}, {"input-bound"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_diagnosis(name: str, tmp_path: Path) -> None:
    loop, variables, expected = SCRIPTS[name]
    variables = {"TORCH_XLA_COMPILE_POLICY": "auto", "XLA_PERSISTENT_CACHE_PATH": ""} | variables
    done = run_script(_HEAD + loop + _TAIL, check=False, **variables)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    problems = {entry["kind"] for entry in data["bottlenecks"] if entry["level"] == "problem"}
    assert problems == expected, data["bottlenecks"]
    first = data["bottlenecks"][0]
    assert (first["level"] == "ok" and first["text"].startswith("no problem found: ")) == (not expected)
    if "compile-bound" in problems:
        assert data["recompilations"], "the text refers to them"
    steady = sum(row["settled_ms"] for row in data["time"].values())
    assert data["time"]["first use"]["settled_ms"] == 0 < steady
    assert data["time"]["tracing"]["ms_per_step"] < 3 * steady, "first-use costs are no tracing"
    if "interpreted" in problems:
        assert data["time"]["interpreted"]["settled_ms"] > data["time"]["execute"]["settled_ms"]
