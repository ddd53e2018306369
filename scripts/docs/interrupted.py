"""Interrupts a kernel in the middle of a training, as the stop button of a notebook does, and goes on with it.

    python scripts/docs/interrupted.py --packages .venv         (make notebooks does it)

Ends with 1 where a cell is not ended by the interrupt, or the next one does not compute.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client import BlockingKernelClient, KernelManager

from notebooks import environment

SETUP = """
import torch, torch_xla
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to("xla")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(32, 64, device="xla")
def step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    return loss
for _ in range(3): step()
"""
LOOP = "while True: step()"
AFTER = """
import copy
step()
torch.testing.assert_close(model(x).cpu(), copy.deepcopy(model).cpu()(x.cpu()), rtol=1e-3, atol=1e-3)
assert all(p.isfinite().all() for p in model.parameters())
"""
TIMES, PATIENCE = 5, 300.0  # interrupts, and seconds that a cell may take


def cell(client: BlockingKernelClient, code: str, wait: float = PATIENCE) -> str:
    """How a cell ended: ``ok``, or the name of its error. Raises queue.Empty where it has not."""
    return wait_for_cell(client, client.execute(code), wait)


def wait_for_cell(client: BlockingKernelClient, number: str, wait: float) -> str:
    """Wait for a cell that is running, and return how it ended."""
    deadline = time.monotonic() + wait
    while True:
        reply = client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
        if reply["parent_header"].get("msg_id") == number:
            content = reply["content"]
            return str(content["status"] if content["status"] == "ok" else content["ename"])


def main() -> int:
    """Interrupts at random moments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the environment that has torch, and all else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(environment(options.packages, Path(home)))
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE)
            found = [cell(client, SETUP)]
            for _ in range(TIMES):
                running = client.execute(LOOP)
                time.sleep(1 + random.random())
                manager.interrupt_kernel()
                found += [wait_for_cell(client, running, PATIENCE), cell(client, AFTER)]
        except queue.Empty:
            found.append("has not ended")
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    print("interrupted:", ", ".join(found))
    return int(found != ["ok", *["KeyboardInterrupt", "ok"] * TIMES])


if __name__ == "__main__":
    sys.exit(main())
