"""docs/get_started/porting_from_cuda.md: the diff and the idioms of the tables do what the page says."""

from __future__ import annotations

import builtins
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.memory
import torch_xla.distributed.xla_backend
from tests.support.helpers import ROOT, run_script

_PAGE = (ROOT / "docs" / "get_started" / "porting_from_cuda.md").read_text()
_ROW = re.compile(r"^\| (`.*?`) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_IDIOMS = [pytest.param(*row.groups(), id=row[1].strip("`")) for row in _ROW.finditer(_PAGE)]
_MODULES = {"dist": dist, "nn": nn, "time": time, "torch": torch, "torch_xla": torch_xla, "xm": xm}


def _names(device: str) -> dict[str, Any]:
    """Return what the idioms of the page use: a step whose loss has been computed."""
    model = nn.Linear(4, 2).to(device)
    x = torch.randn(3, 4, device=device)
    return {
        **_MODULES,
        "DataLoader": DataLoader,
        "DistributedDataParallel": DistributedDataParallel,
        "dataset": TensorDataset(torch.randn(8, 4)),
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "x": x,
        "loss": model(x).sum(),
        "total": 0.0,
    }


def _code(cell: str) -> list[str]:
    return re.findall(r"`(.*?)`", cell)


@pytest.fixture
def group() -> Iterator[None]:
    """End the process group that an idiom makes; DistributedDataParallel needs one."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in the current folder."""
    monkeypatch.chdir(tmp_path)
    torch.save(nn.Linear(4, 2).state_dict(), "model.pt")


def test_page_has_the_idioms() -> None:
    assert len(_IDIOMS) == 28
    assert f"{len(_IDIOMS)} idioms" in _PAGE


# Importing inductor, torch.compile's default backend, defines script methods, which torch warns of.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("group", "saved")
@pytest.mark.parametrize(("idiom", "write", "unchanged"), _IDIOMS)
def test_replacement_runs(idiom: str, write: str, unchanged: str) -> None:
    """The code of the second column runs, without a warning."""
    if "DistributedDataParallel" in write:
        dist.init_process_group("xla", init_method="xla://")
    code = _code(write)
    assert code or write.startswith("remove")
    for piece in code:
        exec(piece, _names("xla"))


@pytest.fixture
def flags() -> Iterator[None]:
    """Allow setting flags of backends, which torch.testing forbids once its operator table is imported."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield


@pytest.mark.usefixtures("group", "saved", "flags")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the third column is about machines without CUDA")
@pytest.mark.parametrize(("idiom", "write", "unchanged"), _IDIOMS)
def test_idiom_does_what_the_page_says(idiom: str, write: str, unchanged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first column raises the error that begins the third one, and else runs."""
    if "DistributedDataParallel" in write:
        dist.init_process_group("xla", init_method="xla://")
    error = re.match(r"`(\w+Error)`", unchanged)
    (code,) = _code(idiom)
    names = _names("xla")
    allow_tf32, benchmark = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, and of torch_xla for autocast("cuda")
            if error is None:
                exec(code, names)
            else:
                with _raises(code, getattr(builtins, error[1])):
                    exec(code, names)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = allow_tf32, benchmark


def _raises(code: str, error: type[Exception]) -> AbstractContextManager[Any]:
    """Expect the error of the page; in a torch built with CUDA, which loads a driver, the ones below the tables."""
    if "nccl" in code:
        return pytest.raises((ValueError, RuntimeError))
    if torch.version.cuda is None:
        return pytest.raises(error)
    return nullcontext() if "Event" in code else pytest.raises((RuntimeError, error))


def test_silent_rows() -> None:
    """What the page says about idioms that run: None, 0, False, float32."""
    x = torch.ones(2, 2, device="xla")
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    assert torch.cuda.max_memory_allocated() == torch.cuda.device_count() == 0
    assert not x.is_cuda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cuda"):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16


def test_diff_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new side of the diff runs; the old one is Python."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```diff\n(.*?)```", _PAGE, re.DOTALL)
    lines = block.splitlines()
    assert all(line[:1] in ("", " ", "+", "-") for line in lines)
    new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    compile(old, "old.py", "exec")
    done = run_script(new, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^4 \d\.\d+$", done.stdout, re.MULTILINE)
    assert re.search(r"^peak memory: \d+ MB$", done.stdout, re.MULTILINE)
