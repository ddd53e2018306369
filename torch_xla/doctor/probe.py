"""Step through import, device start and a gradient in a separate process, and write each result as a line of JSON.

Run it as a file: importing the package is one of the steps, and a step that crashes ends only this process.

    python probe.py '["folders", "of", "sys.path"]'
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any


def steps() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name and function of each step; the function returns facts for the report."""
    yield "torch", _torch
    yield "jax", _jax
    yield "recorder", _recorder
    yield "devices", _devices
    yield "a step", _step


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {'built with CUDA ' + torch.version.cuda if torch.version.cuda else 'without CUDA'}"


def _jax() -> str:
    import jax
    import jaxlib

    return f"{jax.__version__}, jaxlib {jaxlib.__version__}"


def _recorder() -> str:
    # The report of the doctor has a finding for each of these variables.
    warnings.filterwarnings("ignore", r"torch_xla: the environment variable \w+ is not a setting", UserWarning)
    import torch_xla

    assert hasattr(torch_xla, "device_count"), f"{torch_xla.__file__} is not the complete package"
    return str(sys.modules["_torch_xla_recorder"].__file__)


def _devices() -> str:
    import jax

    import torch_xla

    names, real = ", ".join(map(str, torch_xla.devices())), ", ".join(torch_xla.real_devices())
    return f"{names}: {real} ({', '.join(sorted({device.device_kind for device in jax.local_devices()}))})"


def _step() -> str:
    import torch

    import torch_xla

    start = time.perf_counter()

    def gradient(device: str) -> torch.Tensor:
        x = torch.arange(6.0).reshape(2, 3).to(device).requires_grad_()
        (x @ x.t()).square().mean().backward()
        torch_xla.sync()
        assert x.grad is not None
        return x.grad.cpu()

    here, there = gradient("cpu"), gradient("xla")
    if not torch.allclose(here, there, rtol=2e-2):  # TPUs may use bfloat16 matmuls
        raise ArithmeticError(f"the gradient on xla is {there.tolist()}, but on the CPU {here.tolist()}")
    return f"forward and backward on xla match the CPU, {time.perf_counter() - start:.1f} s"


def main() -> None:
    """Run the steps until one fails."""
    # Redirect what libraries print to standard output to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path[:] = json.loads(sys.argv[1])
    for name, step in steps():
        _write(answers, step=name)
        try:
            _write(answers, step=name, said=step())
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            _write(
                answers, step=name, kind=type(error).__name__, failed=str(error), line=f"{last.filename}:{last.lineno}"
            )
            return


def _write(answers: Any, **words: str) -> None:
    answers.write(json.dumps(words) + "\n")


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # skip shutdown, which is not part of the check
