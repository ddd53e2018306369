"""Train ResNet-50 on synthetic images of ImageNet's size, one process per device, to measure throughput.

python examples/train_imagenet.py --fake_data --num_cores=2 --steps=10 --batch_size=16
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import optim
from tqdm import tqdm

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.models import ResNet

CLASSES = 1000


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake_data", action="store_true", help="required: the example has no reader of ImageNet")
    parser.add_argument("--num_cores", type=int, default=1, help="processes, one per device (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=8, help="images per step and device")
    parser.add_argument("--image_size", type=int, default=224, help="height and width (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=50, choices=(18, 50), help="ResNet depth (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()
    if not options.fake_data:
        parser.error("only synthetic images are supported: pass --fake_data")
    return options


def _mp_fn(index: int, options: argparse.Namespace) -> None:
    torch.manual_seed(index)
    device = xm.xla_device()
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    batch = images, torch.randint(CLASSES, (options.batch_size,))
    loader = pl.MpDeviceLoader(xu.SampleGenerator(batch, options.steps), device)
    torch.manual_seed(0)  # equal weights on all replicas
    model = ResNet(options.layers, classes=CLASSES).to(device).train()
    optimizer = optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    losses, times = [], []
    for data, target in tqdm(loader, unit="step", disable=not xm.is_master_ordinal(local=False)):
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.detach())
    xm.wait_device_ops()
    first, last = losses[0].item(), losses[-1].item()
    # The first two steps compile and do not count.
    warm = min(2, len(times) - 1)
    rate = (len(times) - warm) * options.batch_size * xr.world_size() / (time.perf_counter() - times[warm])
    xm.master_print(f"loss {first:.4f} to {last:.4f} in {len(losses)} steps, {rate:,.1f} images/s", flush=True)


if __name__ == "__main__":
    arguments = parse()
    xmp.spawn(_mp_fn, args=(arguments,), nprocs=arguments.num_cores)
