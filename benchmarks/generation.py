"""Decoding with transformers' generate(): a captured step, and recorded steps.

    python -m benchmarks.generation [--layers 12] [--width 256]

Milliseconds per token, medians of rounds of 64 tokens that are taken in turns, for a Llama with a static cache. The
tokens of both are compared with those of eager PyTorch on the CPU. Needs the libraries of ``make test-clients``.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import setting, table, time_in_turns

TOKENS, ROUNDS = 64, 5


def make_model(layers: int, width: int) -> Any:
    """Return a Llama with random weights on the CPU."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
        bos_token_id=1, eos_token_id=511, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def measure(layers: int, width: int) -> dict[str, float]:
    """Return milliseconds per token of each contestant. Raises RuntimeError if their tokens differ."""
    import torch_xla  # noqa: F401
    from torch_xla.experimental.generation import CapturedDecoder

    eager = make_model(layers, width)
    model = copy.deepcopy(eager).to("xla")
    decoder = CapturedDecoder(model)
    prompt = torch.randint(1, 500, (1, 16))
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "cache_implementation": "static"}
    on_device = prompt.to("xla")
    contestants: dict[str, Callable[[], Any]] = {
        "captured": lambda: model.generate(on_device, custom_generate=decoder, **options).tolist(),
        "recorded": lambda: model.generate(on_device, **options).tolist(),
    }
    tokens = {name: [generate() for _ in range(4)][-1] for name, generate in contestants.items()}
    expected = eager.generate(prompt, **options).tolist()
    if any(found != expected for found in tokens.values()):
        raise RuntimeError(f"the contestants generate other tokens: {tokens}")
    return time_in_turns(contestants, ROUNDS, TOKENS)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = measure(options.layers, options.width)
    rows = [[name, f"{value:.2f}", f"{value / found['recorded']:.2f}"] for name, value in found.items()]
    print(f"{setting()}\n\n{table(['a token', 'ms', 'to recorded'], rows)}")


if __name__ == "__main__":
    main()
