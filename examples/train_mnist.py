"""Train on handwritten digits with one thread per device.

    python examples/train_mnist.py                      on one device
    python examples/train_mnist.py --num_cores=4        on four; without a TPU or GPUs, four emulated by the CPU
    python examples/train_mnist.py --num_cores=0        in native PyTorch, on the CPU

Processes use a host better than threads: see examples/train_mp_mnist.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.nn.functional as F
from mnist_data import MNIST, datasets, parse
from torch import nn, optim
from torch.utils.data import DataLoader
from tqdm import tqdm

import torch_xla.core.xla_model as xm
import torch_xla.distributed.data_parallel as dp


def train(options: argparse.Namespace) -> float:
    """Train and return the accuracy on the test set."""
    torch.manual_seed(1)
    os.environ.setdefault("CPU_NUM_DEVICES", str(max(1, options.num_cores)))  # read when a device is first used
    devices = (xm.get_xla_supported_devices(max_devices=options.num_cores) or []) if options.num_cores else []
    if len(devices) < options.num_cores:
        sys.exit(f"--num_cores={options.num_cores}, but only {len(devices)} devices are available")
    train_set, test_set, name = datasets(options.datadir)
    size = options.batch_size // max(1, len(devices))
    train_loader = DataLoader(train_set, size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, size, drop_last=True)
    model_parallel = dp.DataParallel(MNIST, device_ids=devices)

    def train_loop_fn(model: nn.Module, loader: DataLoader, device: torch.device, context: dp.Context) -> float:
        optimizer = context.getattr_or("optimizer", lambda: optim.SGD(model.parameters(), lr=options.lr, momentum=0.5))
        model.train()
        loss = torch.zeros(())
        for data, target in tqdm(loader, desc=str(device), unit="step", disable=not xm.is_master_ordinal()):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            xm.optimizer_step(optimizer)  # averages the gradients; the loader ends the step
        return loss.item()

    @torch.no_grad()
    def test_loop_fn(model: nn.Module, loader: DataLoader, device: torch.device, context: dp.Context) -> list[int]:
        model.eval()
        correct, total = torch.zeros((), dtype=torch.int64, device=device), 0
        for data, target in loader:
            correct += (model(data).argmax(1) == target).sum()
            total += len(target)
        return [int(correct.item()), total]

    accuracy = 0.0
    for epoch in range(1, options.num_epochs + 1):
        start = time.perf_counter()
        losses = model_parallel(train_loop_fn, train_loader)
        images = len(train_loader) // len(losses) * len(losses) * size
        rate = images / (time.perf_counter() - start)
        results = model_parallel(test_loop_fn, test_loader)
        accuracy = sum(correct for correct, _ in results) / sum(total for _, total in results)
        print(f"epoch {epoch}: {name}, loss {losses[0]:.4f}, test accuracy {accuracy:.4f}, {rate:,.0f} images/s")
    return accuracy


if __name__ == "__main__":
    arguments = parse(__doc__, "devices to train on")
    sys.exit(train(arguments) < arguments.target_accuracy)
