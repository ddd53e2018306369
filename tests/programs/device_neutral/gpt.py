"""A GPT trainer: weight decay groups, gradient accumulation, a checkpoint saved and resumed, memory statistics."""

import io

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, words: int = 50, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.head = nn.Sequential(Block(width, 4), Block(width, 4)), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.positions(positions)))


def make(device: torch.device) -> tuple[Gpt, torch.optim.AdamW]:
    model = Gpt().to(device)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def train(model: Gpt, optimizer: torch.optim.AdamW, batches: torch.Tensor, device: torch.device) -> None:
    for batch in batches:
        for part in batch.chunk(2):  # gradient accumulation
            part = part.to(device)
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"{loss.item():.4f}")


def main() -> None:
    torch.manual_seed(1)
    available = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if available else torch.device("cpu")
    batches = torch.randint(50, (6, 4, 17))
    model, optimizer = make(device)
    train(model, optimizer, batches[:3], device)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, map_location=device)
    model, optimizer = make(device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, batches[3:], device)
    if available:
        assert torch.accelerator.memory_allocated() > 0
        assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    print("device", device.type)


main()
