"""Options, data and network of the MNIST examples: MNIST if it is on disk, otherwise scikit-learn's digits."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def parse(doc: str | None, cores: str) -> argparse.Namespace:
    """Parse the command line of the example with this docstring; ``cores`` describes what --num_cores counts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_cores", type=int, default=1, help=f"{cores} (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="images per step, over all devices")
    parser.add_argument("--num_epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--datadir", default="data", help="folder with MNIST's files, if available")
    parser.add_argument("--target_accuracy", type=float, default=0.0, help="exit 1 below this test accuracy")
    return parser.parse_args()


class MNIST(nn.Module):
    """Two convolutions and two linear layers for 28 x 28 images in 10 classes; returns log probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 10, kernel_size=5), nn.BatchNorm2d(10)
        self.conv2, self.bn2 = nn.Conv2d(10, 20, kernel_size=5), nn.BatchNorm2d(20)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.bn1(F.relu(F.max_pool2d(self.conv1(images), 2)))
        x = self.bn2(F.relu(F.max_pool2d(self.conv2(x), 2)))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


def datasets(folder: str) -> tuple[TensorDataset, TensorDataset, str]:
    """Return training set, test set and their name. Images are float32[N, 1, 28, 28] in [0, 1], labels int64[N]."""
    found = [_find(Path(folder), name) for name in _FILES]
    if all(found):
        images, labels, test_images, test_labels = (_read_idx(path) for path in found if path)
        return _dataset(images / 255, labels), _dataset(test_images / 255, test_labels), "MNIST"
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order].reshape(-1, 8, 8) / 16, labels[order]
    return _dataset(images[:1437], labels[:1437]), _dataset(images[1437:], labels[1437:]), "digits"


def _find(folder: Path, name: str) -> Path | None:
    candidates = [path for path in (folder, folder / "MNIST" / "raw") for path in (path / name, path / f"{name}.gz")]
    return next((path for path in candidates if path.exists()), None)


def _read_idx(path: Path) -> np.ndarray:
    """Read an array in MNIST's file format: two zeros, a type, the number of dims, their sizes, the values."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read()
    dims = data[3]
    shape = np.frombuffer(data, ">i4", dims, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def _dataset(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
    pixels = torch.tensor(images, dtype=torch.float32).unsqueeze(1)
    if pixels.shape[-1] != 28:
        pixels = F.interpolate(pixels, size=(28, 28), mode="bilinear", align_corners=False)
    return TensorDataset(pixels, torch.tensor(labels, dtype=torch.int64))
