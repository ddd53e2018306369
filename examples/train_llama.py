"""Train a Llama, byte by byte, on the sources of Python's standard library, which every machine has.

python examples/train_llama.py                                  two minutes on one CPU device
python examples/train_llama.py --mesh 2x2x1 --scan --remat      data x fsdp x tensor: four devices, one process (SPMD)
torchrun --nproc-per-node=2 examples/train_llama.py --mesh 2x2x1        the same in two processes

The batch is sharded over "data" and "fsdp", every weight over "fsdp" and "tensor". The result of a step does not depend
on the mesh. A run that was killed and is started again with the same --checkpoints resumes from its last checkpoint.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer
from torch_xla.experimental.scan_layers import StackedLayers, scan_layers


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama; the larger presets are those of Llama 3."""

    width: int
    layers: int
    heads: int
    key_heads: int  # groups of heads share keys and values
    hidden: int
    vocabulary: int = 256
    rope_base: float = 500_000.0


PRESETS = {
    "tiny": Config(width=128, layers=4, heads=4, key_heads=2, hidden=352),
    "1b": Config(width=2048, layers=16, heads=32, key_heads=8, hidden=8192, vocabulary=128_256),
    "8b": Config(width=4096, layers=32, heads=32, key_heads=8, hidden=14_336, vocabulary=128_256),
    "70b": Config(width=8192, layers=80, heads=64, key_heads=8, hidden=28_672, vocabulary=128_256),
}


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Apply rotary embeddings: rotate pairs of x [batch, heads, length, size] by angles that grow with the position."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.size = config, config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.size, bias=False)
        self.key = nn.Linear(config.width, config.key_heads * self.size, bias=False)
        self.value = nn.Linear(config.width, config.key_heads * self.size, bias=False)
        self.out = nn.Linear(config.heads * self.size, config.width, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """Split the heads: [batch, length, heads * size] -> [batch, heads, length, size]."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Compute attention; with a cache, write keys and values to it and read those of all previous positions."""
        base = self.config.rope_base
        query = rotate(self.heads(self.query(x)), positions, base)
        key, value = rotate(self.heads(self.key(x)), positions, base), self.heads(self.value(x))
        mask = None
        if cache is not None:
            key = cache[0].index_copy_(2, positions, key)
            value = cache[1].index_copy_(2, positions, value)
            mask = torch.arange(key.shape[2], device=x.device) <= positions[:, None]
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


#: A mesh, and the sharding of activations on it.
Layout = tuple[xs.Mesh, tuple[Any, ...]]


def spread(x: Tensor, layout: Layout | None) -> Tensor:
    """Shard activations and their gradients over a mesh, so that XLA gathers weights rather than activations."""
    return x if layout is None else xs.mark_sharding_with_gradients(x, *layout)


class Block(nn.Module):
    """A transformer block. With ``remat``, backward recomputes its activations and only the input is saved."""

    layout: Layout | None = None

    def __init__(self, config: Config, remat: bool) -> None:
        super().__init__()
        self.remat = remat
        self.before_attention = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.before_mlp = nn.RMSNorm(config.width, eps=1e-5)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, positions: Tensor | None = None, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if cache is not None and positions is not None:
            return self.run(x, positions, cache)
        x = spread(x, self.layout)
        positions = torch.arange(x.shape[1], device=x.device)
        return checkpoint(self.run, x, positions, use_reentrant=False) if self.remat else self.run(x, positions)

    def run(self, x: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.attention(self.before_attention(x), positions, cache)
        normal = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Llama(nn.Module):
    """Return logits [batch, length, vocabulary] for tokens [batch, length].

    With ``scan`` the blocks are one loop; with ``stack`` the loop reads weights that are stored as stacks.
    """

    layout: Layout | None = None

    def __init__(self, config: Config, scan: bool = False, remat: bool = False, stack: bool = False) -> None:
        super().__init__()
        self.config, self.scan = config, scan
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        blocks = [Block(config, remat) for _ in range(config.layers)]
        self.blocks = StackedLayers(blocks) if stack else nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name and "before" not in name:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if isinstance(self.blocks, StackedLayers):
            x = self.blocks(x)
        elif self.scan:
            x = scan_layers(self.blocks, x)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(spread(x, self.layout)))

    def each_block(self) -> list[Callable[..., Tensor]]:
        """Return the blocks, one by one."""
        if not isinstance(self.blocks, StackedLayers):
            return list(self.blocks)
        states = [self.blocks.layer_state_dict(number) for number in range(len(self.blocks))]
        return [lambda *args, state=state: functional_call(self.blocks.layer, state, args) for state in states]

    @torch.no_grad()
    def generate(self, prompt: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Sample ``count`` tokens after ``prompt`` [batch, length]. Compiles two programs: the prompt, one token."""
        batch, length = prompt.shape
        config = self.config
        shape = (batch, config.key_heads, length + count, config.width // config.heads)
        caches = [(prompt.new_zeros(shape, dtype=self.norm.weight.dtype),) * 2 for _ in range(config.layers)]
        caches = [(keys, values.clone()) for keys, values in caches]
        positions, tokens, found = torch.arange(length, device=prompt.device), prompt, []
        for _ in range(count):
            x = self.embedding(tokens)
            for block, cache in zip(self.each_block(), caches, strict=True):
                x = block(x, positions, cache)
            logits = self.head(self.norm(x[:, -1])).float()
            tokens = torch.multinomial(F.softmax(logits / temperature, -1), 1)
            positions = positions[-1:] + 1
            found.append(tokens)
            torch_xla.sync()
        return torch.cat(found, 1)


#: Sharding of weights by the end of their names. Pairs of matmuls over "tensor" need one reduction.
LAYOUT = {
    ("query.weight", "key.weight", "value.weight", "gate.weight", "up.weight"): ("tensor", "fsdp"),
    ("out.weight", "down.weight"): ("fsdp", "tensor"),
    ("embedding.weight",): ("tensor", "fsdp"),
    ("head.weight",): ("tensor", "fsdp"),
}


def shard(model: Llama, mesh: xs.Mesh) -> None:
    """Shard the weights over the mesh before they are allocated; gradients and optimizer state inherit the sharding."""
    for module in model.modules():
        if isinstance(module, (Llama, Block)):
            module.layout = mesh, (("data", "fsdp"), None, None)
    for name, parameter in model.named_parameters():
        for ends, layout in LAYOUT.items():
            if name.endswith(ends):  # a stack has an additional dimension
                xs.mark_sharding(parameter, mesh, (None,) * (parameter.dim() - 2) + layout)


class Text:
    """The sources of Python's standard library as bytes; the batch of a step depends only on its number."""

    def __init__(self, length: int) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.bytes = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
        self.length = length

    def batch(self, step: int, size: int) -> Tensor:
        """Return tokens [size, length + 1]."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.bytes) - self.length - 1, (size, 1), generator=generator)
        return self.bytes[starts + torch.arange(self.length + 1)].long()


class Trainer:
    """A model, its optimizer and the step number: the state of a checkpoint."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        self.config = PRESETS[options.preset]
        with torch.device("xla"):
            model = Llama(self.config, options.scan, options.remat, options.stack)
        self.spec = None
        if options.bf16:
            model.bfloat16()
        if options.mesh is not None:
            mesh = xs.Mesh(range(math.prod(options.mesh)), options.mesh, ("data", "fsdp", "tensor"))
            shard(model, mesh)
            self.spec = xs.ShardingSpec(mesh, (("data", "fsdp"), None))
        self.model = model.to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), options.lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.text = Text(options.length)
        self.step = 0

    def rate(self, step: int) -> float:
        """Return the learning rate factor: warmup, then a half cosine down to a tenth."""
        warmup, total = self.options.warmup, self.options.steps
        if step < warmup:
            return (step + 1) / warmup
        return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, total - warmup))

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict()}  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the microbatches of this step, on the device."""
        options = self.options
        for part in self.text.batch(self.step, options.batch_size).chunk(options.accumulate):
            both = [t.contiguous().to("xla") for t in (part[:, :-1], part[:, 1:])]
            if self.spec is not None:
                for tensor in both:
                    self.spec.apply(tensor)
            yield both[0], both[1]

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss; logits are not bound to a name, because live tensors at the end of a step are outputs."""
        logits = self.model(tokens).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def train_step(self) -> Tensor:
        """Run a step and return the loss before the update."""
        total = torch.zeros((), device="xla")
        for tokens, targets in self.batches():
            loss = self.loss(tokens, targets) / self.options.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        torch_xla.sync()
        return total

    def flops(self) -> float:
        """Return FLOPs of a step without recomputation: 6 per weight and token, and attention."""
        options, config = self.options, self.config
        weights = sum(p.numel() for p in self.model.parameters()) - self.model.embedding.weight.numel()
        tokens = options.batch_size * options.length
        return tokens * (6 * weights + 6 * config.layers * config.width * options.length)

    def train(self, checkpoints: CheckpointManager | None) -> float:
        """Train to the last step; return its loss, nan if no step was left."""
        options, losses = self.options, []
        bar = tqdm(total=options.steps, initial=self.step, unit="step", disable=not xm.is_master_ordinal(local=False))
        start, before, first = time.perf_counter(), 0.0, self.step
        while self.step < options.steps:
            losses.append(self.train_step())
            bar.update()
            if self.step % options.log_every == 0 or self.step == options.steps:
                shown = f"{losses[-1].item():.4f}"
                if self.step - first > 2:  # the first steps compile
                    before = before or time.perf_counter() - start
                if self.step - first > options.log_every:
                    rate = (self.step - first - options.log_every) / (time.perf_counter() - start - before)
                    speed = rate * options.batch_size * options.length
                    bar.set_postfix_str(f"loss {shown}, {speed:,.0f} tokens/s, {self.utilisation(rate)}")
            if checkpoints is not None:
                checkpoints.save_async(self.step, self.state())  # if one is due
        bar.close()
        return losses[-1].item() if losses else math.nan

    def utilisation(self, steps_per_second: float) -> str:
        """Format the model FLOP/s, as a fraction of the devices' peak if that is given."""
        achieved = self.flops() * steps_per_second / 1e12
        peak = self.options.peak_tflops
        return f"MFU {achieved / peak:.1%}" if peak else f"{achieved * 1000:,.1f} GFLOP/s"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="tiny")
    add(
        "--mesh",
        type=lambda s: tuple(map(int, s.split("x"))),
        help="sizes of data x fsdp x tensor; default: one device",
    )
    add("--scan", action="store_true", help="run the blocks as one loop: compiles as fast as one block")
    add("--stack", action="store_true", help="like --scan, with weights stored as stacks: no copies during a step")
    add("--remat", action="store_true", help="recompute activations in backward instead of saving them")
    add("--bf16", action="store_true", help="weights and computation in bfloat16")
    add("--steps", type=int, default=300)
    add("--batch_size", type=int, default=16)
    add("--length", type=int, default=128)
    add("--accumulate", type=int, default=1, help="number of microbatches per batch")
    add("--lr", type=float, default=2e-3)
    add("--warmup", type=int, default=20)
    add("--clip", type=float, default=1.0)
    add("--seed", type=int, default=1)
    add("--log_every", type=int, default=10)
    add("--checkpoints", help="folder of checkpoints; a run resumes from the latest one in it")
    add("--save_every", type=int, default=50)
    add("--generate", type=int, default=120, help="number of bytes to generate at the end")
    add("--peak_tflops", type=float, default=0.0, help="total peak of all devices, for the utilization (MFU)")
    add("--target_loss", type=float, default=math.inf, help="exit code 1 above this loss")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if options.mesh is not None:
        processes = xr.process_count()
        os.environ.setdefault("CPU_NUM_DEVICES", str(math.prod(options.mesh) // processes))
        xr.use_spmd()
        if processes > 1:
            dist.init_process_group("gloo", init_method="xla://")
    trainer = Trainer(options)
    checkpoints = None
    if options.checkpoints is not None:
        checkpoints = CheckpointManager(options.checkpoints, options.save_every, 2, chkpt_on_preemption=False)
        if steps := checkpoints.all_steps():
            prime_optimizer(trainer.optimizer)
            state = trainer.state()
            checkpoints.restore(steps[-1], state)
            trainer.load(state)
    loss = trainer.train(checkpoints)
    if checkpoints is not None:
        checkpoints.join()
    xm.master_print(f"{options.preset}: {trainer.step} steps, loss {loss:.4f}", flush=True)
    if options.generate:
        prompt = torch.tensor([list(b"import ")], device="xla")
        text = trainer.model.generate(prompt, options.generate)[0].tolist()
        xm.master_print("import " + bytes(text).decode(errors="replace"))
    if not loss <= options.target_loss:
        sys.exit(1)


if __name__ == "__main__":
    main()
