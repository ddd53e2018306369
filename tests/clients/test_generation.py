"""CapturedDecoder: generate() of transformers, unmodified, with the step captured; the tokens of the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.clients import checks
from torch_xla._engine.compilation import program_cache
from torch_xla.experimental.generation import CapturedDecoder

transformers = checks.library("transformers")

WORDS, END = 64, 63
STATIC = {"cache_implementation": "static"}
Model = Any


def make_model(name: str = "llama", **options: Any) -> Model:
    """A small model on the CPU."""
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=WORDS, n_positions=128, n_embd=32, n_layer=2, n_head=2, **options)
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        kind = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig}[name]
        config = kind(vocab_size=WORDS, max_position_embeddings=128, num_key_value_heads=1, **sizes, **options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = END, 0
    return model


def prompts(seed: int = 0, batch: int = 2, length: int = 8) -> torch.Tensor:
    """Token ids of prompts."""
    return torch.randint(1, END, (batch, length), generator=torch.Generator().manual_seed(seed))


def both(name: str) -> tuple[Model, Model, CapturedDecoder]:
    """The model on the CPU, on xla, and its decoder."""
    expected = make_model(name)
    model = copy.deepcopy(expected).to("xla")
    return expected, model, CapturedDecoder(model)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_are_replayed(name: str) -> None:
    """The CPU's tokens. Two recordings serve all calls whose cache is not longer; a later call compiles nothing."""
    expected, model, decoder = both(name)
    program_cache.cache.clear()
    compilations = []
    for call, tokens in enumerate((12, 20, 12, 16)):
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, **STATIC}
        with checks.on_xla(model) as moved:
            found = model.generate(prompts(call).to("xla"), custom_generate=decoder, **options)
        assert found.device.type == "xla"
        assert found.tolist() == expected.generate(prompts(call), **options).tolist()
        compilations.append(moved.compilations)
        recorded = 2 if call < 2 else 0  # of the second call, the cache is longer
        assert (moved["ReplayedSteps"], moved["ReplayRecordings"]) == (tokens - 1 - recorded, recorded)
        assert moved["ReplayMisses"] == moved["ReplayRejections"] == 0
    assert compilations[0] <= 8 and compilations[2:] == [0, 0]


def test_sequences_end_and_prompts_are_padded() -> None:
    """Sequences that end at different tokens, an end of all, and left padding."""
    expected, model, decoder = both("llama")
    ids, mask = prompts(batch=3), torch.ones(3, 8, dtype=torch.int64)
    ids[0, :3] = mask[0, :3] = 0
    plain = expected.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None)[:, 8:]
    for ends in ([int(plain[0, 3])], [int(plain[0, 2]), int(plain[1, 5]), int(plain[2, 9])], plain[:, 0].tolist()):
        options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": ends, **STATIC}
        found = model.generate(
            ids.to("xla"), attention_mask=mask.to("xla"), custom_generate=decoder, **options
        ).tolist()
        assert found == expected.generate(ids, attention_mask=mask, **options).tolist()


def test_random_tokens() -> None:
    """The tokens of generate() without the decoder, with the same seed. Without an end, no value is read."""
    _, model, decoder = both("gpt2")
    ids = prompts().to("xla")
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 1.3, **STATIC}
    found = []
    for custom in (None, decoder, decoder):
        torch.manual_seed(3)
        found.append(model.generate(ids, custom_generate=custom, **options).tolist())
    assert found[0] == found[1] == found[2]
    with checks.on_xla(model) as moved:
        model.generate(ids, custom_generate=decoder, **{**options, "eos_token_id": None})
    assert moved["ReplayedSteps"] == 9


def test_processors_of_ids_are_not_captured() -> None:
    """The forward is; one warning names the processor."""
    expected, model, decoder = both("llama")
    options = {"max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2, **STATIC}

    def generate(seed: int) -> list[list[int]]:
        return model.generate(prompts(seed).to("xla"), custom_generate=decoder, **options).tolist()  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="RepetitionPenaltyLogitsProcessor may read the ids"):
        found = [generate(0)]
    with checks.on_xla(model) as moved:
        found.append(generate(1))
    assert found == [expected.generate(prompts(seed), **options).tolist() for seed in (0, 1)]
    assert (moved["ReplayRecordings"], moved["ReplayRejections"], moved["ReplayedSteps"]) == (0, 0, 11)


def test_a_cache_of_the_caller_continues() -> None:
    """Two calls with one cache; it has the tokens of the result, and no others."""
    expected, model, decoder = both("llama")

    def chat(model: Model, device: str, **more: Any) -> list[Any]:
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        found = prompts().to(device)
        for end in (int(first[0, 10]), None):
            options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": end, "past_key_values": cache, **more}
            found = model.generate(found, **options)
        return [found.tolist(), int(cache.get_seq_length())]

    first = expected.generate(prompts(batch=1), max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert chat(model, "xla", custom_generate=decoder) == chat(expected, "cpu")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"cache_implementation": "dynamic"}, "DynamicLayer.* is not static"),
        ("llama", {**STATIC, "num_beams": 2}, "one beam"),
        ("llama", {**STATIC, "return_dict_in_generate": True}, "token ids"),
        ("mistral", STATIC, "StaticSlidingWindowLayer.*slides over a window"),
        ("other", STATIC, "made for another model"),
    ],
)
def test_errors(name: str, options: dict[str, Any], message: str) -> None:
    """Calls that no captured step can serve."""
    model = make_model("mistral", sliding_window=16).to("xla") if name == "mistral" else make_model().to("xla")
    decoder = CapturedDecoder(make_model() if name == "other" else model)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model.generate(prompts().to("xla"), max_new_tokens=4, do_sample=False, custom_generate=decoder, **options)
