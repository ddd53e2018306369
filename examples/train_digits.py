"""Train a small convolutional network on handwritten digits, on an XLA device.

    python examples/train_digits.py                  on xla:0
    python examples/train_digits.py --device cpu     the same code in eager PyTorch, for comparison

The 1,797 scans are part of scikit-learn; nothing is downloaded. The script differs from one for other devices in the
device's name, xm.optimizer_step(), which ends the step, and torch_xla.sync(), which ends an evaluation batch. At its
end it trains for four epochs in eager PyTorch on the CPU, to compare the speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

BATCH = 64
TEST_BATCH = 120  # divides the 360 test images, so that all batches have the same shape


class DigitNet(nn.Module):
    """Two convolutions and two linear layers for 8 x 8 images in 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


@dataclass
class History:
    """Values for the plots, one per epoch, and for the throughput."""

    train_loss: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    train_seconds: list[float] = field(default_factory=list)
    compilations: list[int] = field(default_factory=list)  # cumulative, at the end of each epoch


def make_loaders() -> tuple[DataLoader, DataLoader]:
    """Return loaders of the training and test images. The split and the order of the batches are deterministic."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    x_train, x_test = (torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 for x in parts[:2])
    y_train, y_test = (torch.tensor(y, dtype=torch.int64) for y in parts[2:])
    order = torch.Generator().manual_seed(0)
    train = DataLoader(TensorDataset(x_train, y_train), BATCH, shuffle=True, drop_last=True, generator=order)
    return train, DataLoader(TensorDataset(x_test, y_test), TEST_BATCH, drop_last=True)


def train_epoch(
    model: nn.Module, loader: DataLoader, optimizer: Optimizer, schedule: LRScheduler, device: torch.device
) -> float:
    """Train for one epoch and return the mean loss, which is read after all steps are in flight."""
    model.train()
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        if device.type == "xla":
            xm.optimizer_step(optimizer, barrier=True)
        else:
            optimizer.step()
        schedule.step()  # the learning rate is an input of the compiled step, so a new value compiles no program
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()  # one read per epoch


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return mean loss and accuracy on the test images."""
    model.eval()
    results = []
    for images, labels in loader:
        logits, labels = model(images.to(device)), labels.to(device)
        correct = (logits.argmax(1) == labels).float().mean()
        results.append(torch.stack([F.cross_entropy(logits, labels), correct]))
        if device.type == "xla":
            torch_xla.sync()
    losses, accuracies = zip(*(result.tolist() for result in results), strict=True)
    return sum(losses) / len(losses), sum(accuracies) / len(accuracies)


def compilations() -> int:
    """Return the number of programs that this process has compiled."""
    data = met.metric_data("CompileTime")
    return data[0] if data else 0


def train(device: torch.device, epochs: int) -> History:
    """Train a new network and return its history."""
    torch.manual_seed(0)
    train_loader, test_loader = make_loaders()
    model = DigitNet().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = OneCycleLR(optimizer, 5e-3, total_steps=epochs * len(train_loader))
    history = History()
    progress = tqdm(range(epochs), desc=f"training on {device}", unit="epoch", mininterval=1, disable=None)
    for _ in progress:
        start = time.perf_counter()
        history.train_loss.append(train_epoch(model, train_loader, optimizer, schedule, device))
        history.train_seconds.append(time.perf_counter() - start)
        loss, accuracy = evaluate(model, test_loader, device)
        history.test_loss.append(loss)
        history.test_accuracy.append(accuracy)
        history.compilations.append(compilations())
        progress.set_postfix(loss=f"{history.train_loss[-1]:.4f}", test_accuracy=f"{accuracy:.4f}")
    return history


def plot(history: History, path: str, device: torch.device) -> None:
    """Plot loss and accuracy over the epochs into a PNG file."""
    epochs = range(1, len(history.train_loss) + 1)
    figure = Figure(figsize=(10, 4), layout="constrained")  # without pyplot: needs no display
    left, right = figure.subplots(1, 2)
    left.plot(epochs, history.train_loss, label="training, with dropout")
    left.plot(epochs, history.test_loss, label="test")
    left.set(title="Loss", xlabel="epoch", ylabel="cross entropy", yscale="log")
    left.legend()
    right.plot(epochs, history.test_accuracy, color="tab:green")
    right.set(title="Test accuracy", xlabel="epoch", ylabel="accuracy")
    figure.suptitle(f"Handwritten digits on {device}")
    figure.savefig(path, dpi=120)


def speed(seconds: list[float]) -> float:
    """Return the training images per second of the median epoch. Excludes the first one, in which programs compile."""
    return len(make_loaders()[0]) * BATCH / statistics.median(seconds[1:] or seconds)


def eager_cpu_speed() -> float:
    """Return the training images per second of the same loop in eager PyTorch on the CPU, of four epochs."""
    device, (loader, _) = torch.device("cpu"), make_loaders()
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = OneCycleLR(optimizer, 5e-3, total_steps=4 * len(loader))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        train_epoch(model, loader, optimizer, schedule, device)
        seconds.append(time.perf_counter() - start)
    return speed(seconds)


def print_results(history: History, device: torch.device) -> None:
    """Print accuracy, speed, the number of compilations, and three lines of the report."""
    report = str(torch_xla.debug.report()) if device.type == "xla" else ""
    images = speed(history.train_seconds)
    print(f"test accuracy: {history.test_accuracy[-1]:.4f} (360 images)")
    print(f"training: {images:,.0f} images/s on {device}, after a first epoch of {history.train_seconds[0]:.1f} s")
    if device.type == "xla":
        eager, total = eager_cpu_speed(), history.compilations[-1]
        print(f"eager PyTorch on the CPU: {eager:,.0f} images/s (ratio {images / eager:.1f})")
        print(f"compilations: {total}, of which {total - history.compilations[0]} after the first epoch")
        print(f"CPU fallbacks: {', '.join(cpu_fallbacks()) or 'none'}")
        print("\ntorch_xla.debug.report():")
        for line in [line for line in report.splitlines() if line.startswith("[") or " steps, " in line][:3]:
            print(f"  {line}")


def cpu_fallbacks() -> list[str]:
    """Return the operations without a rule for XLA, which ran on the CPU, with their counts."""
    names = [n for n in met.counter_names() if n.startswith("aten::") and n != "aten::_local_scalar_dense"]
    return [f"{name} ({met.counter_value(name)})" for name in names]


def failures(history: History) -> list[str]:
    """Return the failed checks: low accuracy, late compilations, operations that ran on the CPU."""
    late = history.compilations[-1] - history.compilations[0]
    found = []
    if history.test_accuracy[-1] < 0.97:
        found.append(f"test accuracy {history.test_accuracy[-1]:.4f} is below 0.97")
    if late > 3:
        found.append(f"{late} compilations after the first epoch, more than 3")
    if on_cpu := cpu_fallbacks():
        found.append("operations that ran on the CPU: " + ", ".join(on_cpu))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:0", help="xla:0 (default) or cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plot", default="digits.png", help="output file of the plots (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a check of the results fails")
    options = parser.parse_args()
    device = torch.device(options.device)
    history = train(device, options.epochs)
    print_results(history, device)
    plot(history, options.plot, device)
    print(f"\npicture: {options.plot}")
    found = failures(history) if options.check else []
    for line in found:
        print(f"CHECK FAILED: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
