"""FSDP2: fully_shard on a mesh over all processes, mixed precision off; started by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, words: int = 31, width: int = 15) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    available = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if available else torch.device("cpu")
    mesh = init_device_mesh(device.type, (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(1)
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor) and parameter.placements == (Shard(0),)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    words = torch.randint(31, (5, 8, 12))
    rank, size = dist.get_rank(), dist.get_world_size()
    for step, batch in enumerate(words):
        tokens = batch[rank::size].to(device)
        for part in tokens.chunk(2):  # gradient accumulation
            loss = nn.functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"{step} loss {mean.item() / size:.4f}")
        total = norm.full_tensor().item()
        if rank == 0:
            print(f"{step} norm {total:.4f}")
    weight = model.state_dict()["blocks.0.up.weight"].full_tensor()
    if rank == 0:
        print(f"6 weight {weight.double().norm().item():.4f}")
        print("device", device.type)
    dist.destroy_process_group()


main()
