"""Train on handwritten digits with Hugging Face's accelerate.

python examples/train_accelerate.py                                                                 one device
accelerate launch --tpu --num_processes 4 --main_training_function main examples/train_accelerate.py    four devices
accelerate launch --mixed_precision bf16 examples/train_accelerate.py                               bfloat16 matmuls

Without a TPU, set PJRT_DEVICE=CPU. The Accelerator selects the device, and its loaders end each step.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from mnist_data import MNIST, datasets, parse
from torch import nn, optim
from torch.utils.data import DataLoader


def train_epoch(accelerator: Accelerator, model: nn.Module, loader: DataLoader, optimizer: optim.Optimizer) -> float:
    """Train for one epoch and return the loss of the last step; no other loss is read."""
    model.train()
    loss = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy on the test set, over all processes."""
    model.eval()
    right, total = torch.zeros((), device=accelerator.device), 0
    for images, labels in loader:
        found, labels = accelerator.gather_for_metrics((model(images).argmax(1), labels))
        right += (found == labels).sum()
        total += len(labels)
    return right.item() / total


def main() -> None:
    options = parse(__doc__, "has no effect: set --num_processes of accelerate launch")
    accelerator = Accelerator()
    set_seed(1)
    train_set, test_set, name = datasets(options.datadir)
    size = options.batch_size // accelerator.num_processes
    model: nn.Module = MNIST()
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        optim.SGD(model.parameters(), lr=options.lr, momentum=0.5),
        DataLoader(train_set, size, shuffle=True, drop_last=True),  # every new batch shape compiles a program
        DataLoader(test_set, size, drop_last=True),
    )
    accuracy = 0.0
    for epoch in range(1, options.num_epochs + 1):
        loss = train_epoch(accelerator, model, train_loader, optimizer)
        accuracy = evaluate(accelerator, model, test_loader)
        accelerator.print(f"epoch {epoch}: {name}, loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)
    if accuracy < options.target_accuracy:
        sys.exit(1)


if __name__ == "__main__":
    main()
