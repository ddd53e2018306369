"""DistributedDataParallel on the process group that torch chooses for the device; started by torchrun."""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    available = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if available else torch.device("cpu")
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(4, 8, 8)
    targets = torch.randint(4, (4, 8))
    rank, size = dist.get_rank(), dist.get_world_size()
    for inputs, labels in zip(data, targets, strict=True):
        loss = nn.functional.cross_entropy(model(inputs[rank::size].to(device)), labels[rank::size].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"{mean.item() / size:.4f}")
    if rank == 0:
        print("device", device.type)
    dist.destroy_process_group()


main()
