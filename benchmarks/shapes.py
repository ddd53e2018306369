"""Shapes that differ each time, in a process where nothing is compiled yet: here by default, next to eager CPU.

    python -m benchmarks.shapes [--only gpt2]

``generate`` of transformers (`make test-clients` makes an environment that has it, .venv-clients): the first call, for
64 tokens after a prompt of 8, batch 2, greedy, with a cache that grows and with a static one. Ragged lengths: 100
batches of 8 sequences of random lengths up to 64, through the GPT of `step.py`, evaluated, and trained; each loss is
read.

Seconds, each cell from a separate process with nothing on disk; the fastest of three turns. "programs" were compiled,
"interpreted" are graphs that ran by torch's kernels. Raises RuntimeError where the tokens are not the CPU's, or the
losses differ by more than rounding. The target is three times eager's time, and for `generate` at most 8 programs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import models
from benchmarks.report import setting, table

ROUNDS, TOKENS, PROMPT, WORDS, LENGTHS = 3, 64, 8, 1000, 100
DEFAULTS = {"TORCH_XLA_COMPILE_POLICY": "auto", "XLA_PERSISTENT_CACHE_PATH": ""}


def _generator(name: str) -> Any:
    """A model of the size of GPT-2, or of a Llama that is as large, whose weights are random."""
    import transformers

    torch.manual_seed(0)
    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS))
    else:
        sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
        config = transformers.LlamaConfig(
            vocab_size=WORDS, num_key_value_heads=4, max_position_embeddings=1024, **sizes
        )
        model = transformers.LlamaForCausalLM(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model.eval()


def generate(device: str, name: str, cache: str) -> Callable[[], list[float]]:
    """A call for the tokens."""
    model = _generator(name).to(device)
    words = (torch.arange(2 * PROMPT).reshape(2, PROMPT) % WORDS).to(device)
    options = {"max_new_tokens": TOKENS, "do_sample": False, "cache_implementation": cache}
    return lambda: model.generate(words, **options).flatten().tolist()


def ragged_loop(device: str, train: bool) -> Callable[[], list[float]]:
    """A loop over batches of random lengths, for the losses."""
    torch.manual_seed(0)
    model = models.GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [models.text(length=int(length)) for length in torch.randint(1, 65, (LENGTHS,))]

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        with torch.set_grad_enabled(train):
            found = models.loss(model(tokens.to(device)), targets.to(device))
        if train:
            found.backward()
            optimizer.step()
        return found.item()

    return lambda: [loss(*batch) for batch in batches]


CASES: dict[str, Callable[[str], Callable[[], list[float]]]] = {
    **{
        f"generate, {name}, {cache} cache": partial(generate, name=name, cache=cache)
        for name in ("gpt2", "llama")
        for cache in ("dynamic", "static")
    },
    **{
        f"{LENGTHS} ragged lengths, {way}": partial(ragged_loop, train=way == "trained")
        for way in ("evaluated", "trained")
    },
}  # fmt: skip


def measure(case: str, device: str) -> dict[str, Any]:
    """The first call's seconds, results, and how many graphs were compiled and interpreted, in this process."""
    counted = {"UncachedCompile": 0, "InterpretedGraphs": 0}
    if device == "cpu":
        return _run_timed(CASES[case](device)) | counted
    import torch_xla
    import torch_xla.debug.metrics as met

    call = CASES[case](device)
    torch_xla.sync(wait=True)
    met.clear_all()
    return _run_timed(call) | {name: met.counter_value(name) or 0 for name in counted}


def _run_timed(call: Callable[[], list[float]]) -> dict[str, Any]:
    start = time.perf_counter()
    found = call()
    return {"seconds": time.perf_counter() - start, "found": found}


def _measure_in_process(case: str, device: str) -> dict[str, Any]:
    """The same in a separate process, with the settings that users have."""
    command = [sys.executable, "-m", "benchmarks.shapes", "--only", case, "--here", device]
    done = subprocess.run(command, env=os.environ | DEFAULTS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} on {device}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _row(case: str) -> list[str]:
    turns = [(_measure_in_process(case, "cpu"), _measure_in_process(case, "xla")) for _ in range(ROUNDS)]
    for eager, here in turns:
        far = max(abs(a - b) for a, b in zip(eager["found"], here["found"], strict=True))
        if here["found"] != turns[0][1]["found"] or far > (0 if case.startswith("generate") else 1e-2):
            raise RuntimeError(f"{case}: other results than the CPU's, {far:.3g} off, or than those of the run before")
    theirs, ours = (min(turn[i]["seconds"] for turn in turns) for i in range(2))
    here = turns[0][1]
    return [
        case,
        f"{theirs:.2f}",
        f"{ours:.2f}",
        f"{ours / theirs:.2f}",
        str(here["UncachedCompile"]),
        str(here["InterpretedGraphs"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--here", metavar="DEVICE", help="measure the one case in this process, and print it as JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.only, options.here)))
        return
    has_transformers = importlib.util.find_spec("transformers") is not None
    rows = [_row(case) for case in CASES if options.only in case and (has_transformers or "generate" not in case)]
    print(
        f"{setting()}\n\n{table(['first call', 'eager CPU, s', 'here, s', 'ratio', 'programs', 'interpreted'], rows)}"
    )
    if not has_transformers:
        print("\nWithout generate: transformers is not installed here.")


if __name__ == "__main__":
    main()
