"""Train on handwritten digits with Lightning.

python examples/train_lightning.py                      on a TPU
PJRT_DEVICE=CPU python examples/train_lightning.py      without a TPU
PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 python examples/train_lightning.py --num_cores=4      four devices, one process each
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from mnist_data import MNIST, datasets, parse
from torch import optim
from torch.utils.data import DataLoader


class Digits(lightning.LightningModule):
    """The network of the MNIST examples as a LightningModule."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.net, self.rate = MNIST(), rate

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.nll_loss(self.net(images), labels)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)  # a tensor: does not wait for the value

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            values = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            self.print(f"epoch {self.current_epoch + 1}: test accuracy {values['accuracy']:.4f}", flush=True)

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=self.rate, momentum=0.5)


def main() -> None:
    options = parse(__doc__, "devices, one process each")
    lightning.seed_everything(1, verbose=False)
    train_set, test_set, name = datasets(options.datadir)
    size = options.batch_size // options.num_cores
    trainer = lightning.Trainer(
        accelerator="tpu", devices=options.num_cores, max_epochs=options.num_epochs, num_sanity_val_steps=0,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(
        Digits(options.lr),
        DataLoader(train_set, size, shuffle=True, drop_last=True),  # every new batch shape compiles a program
        DataLoader(test_set, size, drop_last=True),
    )
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"{name}: test accuracy {accuracy:.4f} after {options.num_epochs} epochs")
    if accuracy < options.target_accuracy:
        sys.exit(1)


if __name__ == "__main__":
    main()
