"""Train on handwritten digits with one process per device.

python examples/train_mp_mnist.py                   on one device
python examples/train_mp_mnist.py --num_cores=4     on four; without a TPU or GPUs, four emulated by the CPU
python -m torch_xla.distributed.xla_dist --hosts=a,b -- python train_mp_mnist.py --num_cores=4      on two hosts
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from mnist_data import MNIST, datasets, parse
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


def loader_for(data: Dataset, size: int, shuffle: bool) -> DataLoader:
    """Return a loader of this process's samples."""
    sampler = DistributedSampler(data, xr.world_size(), xr.global_ordinal(), shuffle=shuffle)
    return DataLoader(data, size, sampler=sampler, drop_last=True)


def train_epoch(model: nn.Module, loader: pl.MpDeviceLoader, optimizer: optim.Optimizer) -> float:
    """Train for one epoch and return the loss of the last step."""
    model.train()
    loss = torch.zeros(())
    for data, target in tqdm(loader, unit="step", disable=not xm.is_master_ordinal(local=False)):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)  # averages the gradients; the loader ends the step
    return loss.item()


@torch.no_grad()
def evaluate(model: nn.Module, loader: pl.MpDeviceLoader) -> float:
    """Return the accuracy on the test set, over all processes."""
    model.eval()
    correct, total = torch.zeros((), dtype=torch.int64, device=xm.xla_device()), 0
    for data, target in loader:
        correct += (model(data).argmax(1) == target).sum()
        total += len(target)
    return xm.mesh_reduce("accuracy", correct.item() / total, lambda parts: sum(parts) / len(parts))


def _mp_fn(index: int, options: argparse.Namespace) -> None:
    torch.manual_seed(1)
    device = xm.xla_device()
    train_set, test_set, name = datasets(options.datadir)
    size = options.batch_size // xr.world_size()
    train_loader = pl.MpDeviceLoader(loader_for(train_set, size, shuffle=True), device)
    test_loader = pl.MpDeviceLoader(loader_for(test_set, size, shuffle=False), device)
    model = MNIST().to(device)
    optimizer = optim.SGD(model.parameters(), lr=options.lr, momentum=0.5)
    accuracy = 0.0
    for epoch in range(1, options.num_epochs + 1):
        train_loader.sampler.set_epoch(epoch)
        start = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer)
        rate = len(train_loader) * size * xr.world_size() / (time.perf_counter() - start)
        accuracy = evaluate(model, test_loader)
        xm.master_print(
            f"epoch {epoch}: {name}, loss {loss:.4f}, test accuracy {accuracy:.4f}, {rate:,.0f} images/s", flush=True
        )
    if accuracy < options.target_accuracy:
        sys.exit(1)


if __name__ == "__main__":
    arguments = parse(__doc__, "processes, one per device")
    xmp.spawn(_mp_fn, args=(arguments,), nprocs=arguments.num_cores)
