"""Train on handwritten digits with one process that drives all devices: tensors are sharded over a mesh (SPMD).

python examples/train_spmd.py --num_cores=4         on four devices; without a TPU or GPUs, four emulated by the CPU

The batch is sharded over the axis "data", the weights of the largest layer over the axis "model"; other tensors are
replicated. The training loop is that of one device.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.nn.functional as F
from mnist_data import MNIST, datasets, parse
from torch import nn, optim
from torch.utils.data import DataLoader
from tqdm import tqdm

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.distributed.spmd.debugging import visualize_tensor_sharding


def train_epoch(model: nn.Module, loader: MpDeviceLoader, optimizer: optim.Optimizer) -> float:
    """Train for one epoch and return the loss of the last step."""
    model.train()
    loss = torch.zeros(())
    for images, labels in tqdm(loader, unit="step"):
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model: nn.Module, loader: MpDeviceLoader) -> float:
    """Return the accuracy on the test set."""
    model.eval()
    correct, total = torch.zeros((), dtype=torch.int64, device="xla"), 0
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum()
        total += len(labels)
    return correct.item() / total


def main() -> None:
    options = parse(__doc__, "devices")
    os.environ.setdefault("CPU_NUM_DEVICES", str(options.num_cores))
    xr.use_spmd()
    torch.manual_seed(1)
    count = xr.global_runtime_device_count()
    split = 2 if count % 2 == 0 else 1
    mesh = xs.Mesh(range(count), (count // split, split), ("data", "model"))
    images = xs.ShardingSpec(mesh, ("data", None, None, None))
    train_set, test_set, name = datasets(options.datadir)
    loaders = [
        MpDeviceLoader(
            DataLoader(data, options.batch_size, shuffle=train, drop_last=True), "xla", input_sharding=images
        )
        for data, train in ((train_set, True), (test_set, False))
    ]
    model = MNIST().to("xla")
    xs.mark_sharding(model.fc1.weight, mesh, (None, "model"))
    visualize_tensor_sharding(model.fc1.weight)
    optimizer = optim.SGD(model.parameters(), lr=options.lr, momentum=0.5)
    accuracy = 0.0
    for epoch in range(1, options.num_epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, loaders[0], optimizer)
        rate = len(loaders[0]) * options.batch_size / (time.perf_counter() - start)
        accuracy = evaluate(model, loaders[1])
        print(f"epoch {epoch}: {name}, loss {loss:.4f}, test accuracy {accuracy:.4f}, {rate:,.0f} images/s", flush=True)
    if accuracy < options.target_accuracy:
        sys.exit(1)


if __name__ == "__main__":
    main()
