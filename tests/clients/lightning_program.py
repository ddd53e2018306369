"""Trains a small LightningModule on xla devices, in a precision, and tells what rank 0 saw.

python -m tests.clients.lightning_program PRECISION DEVICES FOLDER [fabric | xla | pytorch]

The last two are profilers of its Trainer.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import DeviceStatsMonitor, EarlyStopping, ModelCheckpoint, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.profilers import PyTorchProfiler, XLAProfiler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.clients import checks
from torch_xla._engine import recorder

BATCH, EPOCHS, RATE = 8, 2, 0.1  # a batch of all devices together


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def data() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(64, 8), torch.arange(64) % 2)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.dtypes: set[str] = set()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("evaluated", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        """What is asked in the process that trains."""
        weight = self.net[0].weight
        (node,) = recorder.bindings().nodes_of([weight])
        checks.assert_nothing_on_the_cpu()
        if self.global_rank == 0 and self.current_epoch == EPOCHS - 1:
            results = {"device": str(weight.device), "dtype": str(weight.dtype), "stored": str(node.buffer.dtype)}
            print(checks.tell(results), flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)


def profiler(name: str, folder: Path) -> Any:
    """A profiler of Lightning's; None where the name is of none."""
    if name == "pytorch":
        return PyTorchProfiler(folder, "profile", group_by_input_shapes=False)
    if name == "xla":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return XLAProfiler(free.getsockname()[1])
    return None


def fit(precision: Any, devices: int, folder: Path, watch: str) -> None:
    loader = DataLoader(data(), batch_size=BATCH // devices)
    callbacks = [ModelCheckpoint(folder, filename="last"), EarlyStopping("evaluated", patience=5)]
    if devices == 1:
        callbacks += [DeviceStatsMonitor(), ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=2)]
    trainer = lightning.Trainer(
        accelerator="tpu", devices=devices, precision=precision, max_epochs=EPOCHS, callbacks=callbacks,
        logger=[CSVLogger(folder), TensorBoardLogger(folder)], log_every_n_steps=4, enable_progress_bar=False,
        enable_model_summary=False, profiler=profiler(watch, folder),
        # Lightning clips what a rank has before ranks average: with several that is another training than with one.
        gradient_clip_val=1.0 if devices == 1 else None,
    )  # fmt: skip
    trainer.fit(Module(), loader, loader)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(checks.tell(found), flush=True)


def train_by_hand(fabric: lightning.Fabric) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data(), batch_size=BATCH // fabric.world_size))
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
    weight = model.state_dict()["0.weight"]
    checks.assert_nothing_on_the_cpu()
    gathered = fabric.all_gather(torch.tensor([fabric.global_rank], device=fabric.device)).flatten().tolist()
    if fabric.global_rank == 0:
        results = {"device": str(weight.device), "dtype": str(weight.dtype), "gathered": gathered}
        print(checks.tell(results | {"weight": weight.cpu().flatten().tolist()}), flush=True)


def main() -> None:
    precision, devices, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if "fabric" in sys.argv:
        fabric = lightning.Fabric(accelerator="tpu", devices=devices, precision=precision)  # type: ignore[arg-type]
        fabric.launch(train_by_hand)
    else:
        fit(precision, devices, folder, watch=sys.argv[-1])


if __name__ == "__main__":
    main()
