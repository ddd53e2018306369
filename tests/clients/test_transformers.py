"""transformers' Trainer, with its defaults and otherwise: small models from configurations, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.clients import checks
from tests.support.helpers import counts
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.execution import compile_policy

transformers = checks.library("transformers")
checks.library("accelerate")

Item = dict[str, torch.Tensor]
WORDS = 64
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _words(length: int, first: int = 0) -> torch.Tensor:
    return torch.randint(first, WORDS, (length,))


def _text(i: int) -> Item:
    words = _words(12)
    labels = words.clone()
    labels[
        0
    ] = -100  # nothing predicts it; GPT-2's loss would be divided by one word too many (it is so on the CPU, too)
    return {"input_ids": words, "labels": labels}


def _bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=32, **_SMALL, **_NO_DROPOUT)
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(vocab_size=WORDS, max_position_embeddings=128, num_key_value_heads=1, **_SMALL)
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def _vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=4, **_SMALL, **_NO_DROPOUT)
    return transformers.ViTForImageClassification(config)  # type: ignore[no-any-return]


def _t5() -> nn.Module:
    sizes = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)  # type: ignore[no-any-return]


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=8, d_model=32, max_source_positions=16, max_target_positions=16, dropout=0.0,
        encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64, attention_dropout=0.0,
        decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)  # type: ignore[no-any-return]


#: A model, and its i-th item of data.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Item]]] = {
    "bert": (
        _bert,
        lambda i: {"input_ids": _words(12), "attention_mask": torch.ones(12), "labels": torch.tensor(i % 2)},
    ),
    "gpt2": (_gpt2, _text),
    "llama": (_llama, _text),
    "vit": (_vit, lambda i: {"pixel_values": torch.randn(3, 16, 16), "labels": torch.tensor(i % 4)}),
    "t5": (_t5, lambda i: {"input_ids": _words(12), "labels": _words(8)}),
    "whisper": (_whisper, lambda i: {"input_features": torch.randn(8, 32), "labels": _words(8, first=3)}),
}
BATCH, STEPS, RATE = 4, 6, 3e-3


class Run:
    """A Trainer on one of the models, and the batches that it read."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        make, item = MODELS[name]
        torch.manual_seed(0)
        self.model = make()
        self.items = [item(i) for i in range(16)]
        self.batches: list[Item] = []
        chosen = {
            "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "max_steps": STEPS,
            "learning_rate": RATE, "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [],
            "save_strategy": "no", "disable_tqdm": True,
        }  # fmt: skip
        arguments = transformers.TrainingArguments(str(folder), **chosen | options)
        self.trainer = transformers.Trainer(
            self.model, arguments, train_dataset=self.items, eval_dataset=self.items[:6], data_collator=self._collate
        )

    def _collate(self, items: list[Item]) -> Item:
        batch: Item = transformers.default_data_collator(items)
        self.batches.append({name: value.clone() for name, value in batch.items()})
        return batch

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.trainer.state.log_history if "loss" in entry]


def on_the_cpu(name: str, batches: list[Item], **options: Any) -> tuple[nn.Module, list[float]]:
    """The oracle: the model after a plain loop over the batches, and its losses."""
    torch.manual_seed(0)
    model = MODELS[name][0]().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    return model, checks.replay(model, batches, optimizer, lambda batch: model(**batch).loss, clip=1.0, **options)


@pytest.mark.parametrize("name", MODELS)
def test_training_and_evaluation(name: str, tmp_path: Path) -> None:
    """With the defaults: torch's fused AdamW among them."""
    run = Run(name, tmp_path)
    with checks.on_xla(run.model) as moved:
        run.trainer.train()
    model, losses = on_the_cpu(name, run.batches[:STEPS])
    checks.assert_close(run.losses, losses, rtol=1e-3)
    assert moved.compilations <= 6, "the step, the first one, what clears gradients, what is logged"

    with checks.on_xla(run.model):
        found = run.trainer.evaluate()["eval_loss"]
    model.eval()
    batches = [run.items[:4], run.items[4:6]]
    with torch.no_grad():
        parts = [model(**transformers.default_data_collator(part)).loss.item() * len(part) for part in batches]
    checks.assert_close([found], [sum(parts) / 6], rtol=5e-3)


def test_bf16(tmp_path: Path) -> None:
    run = Run("llama", tmp_path, bf16=True)
    seen = set()
    run.model.get_submodule("lm_head").register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    with checks.on_xla(run.model):
        run.trainer.train()
    assert seen == {torch.bfloat16}
    _, losses = on_the_cpu("llama", run.batches[:STEPS], precision=torch.bfloat16)
    checks.assert_close(run.losses, losses, rtol=2e-2)


OPTIONS = {
    "gradient checkpointing": {"gradient_checkpointing": True},
    "an optimizer of the loop": {"optim": "adamw_torch"},
    "accumulation": {"gradient_accumulation_steps": 2},
    "adafactor": {"optim": "adafactor"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, tmp_path: Path) -> None:
    run = Run("gpt2", tmp_path, **OPTIONS[option])
    with checks.on_xla(run.model):
        run.trainer.train()
    assert len(run.losses) == STEPS and run.losses[-1] < run.losses[0]
    if option in ("gradient checkpointing", "an optimizer of the loop"):
        checks.assert_close(run.losses, on_the_cpu("gpt2", run.batches[:STEPS])[1], rtol=1e-3)


def test_optimizer_of_torch_xla(tmp_path: Path) -> None:
    """optim="adamw_torch_xla" asks for torch_xla's own AdamW, which decides on the device whether a step counts."""
    run = Run("gpt2", tmp_path, optim="adamw_torch_xla")
    with checks.on_xla(run.model):
        run.trainer.train()
    checks.assert_close(run.losses, on_the_cpu("gpt2", run.batches[:STEPS])[1], rtol=1e-3)


def test_resume(tmp_path: Path) -> None:
    """A run that goes on from a checkpoint has the losses and the parameters of the one that was not interrupted."""
    whole = Run("llama", tmp_path, save_strategy="steps", save_steps=3)
    whole.trainer.train()
    rest = Run("llama", tmp_path)
    rest.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    checks.assert_lives_on_xla(rest.model)
    checks.assert_close(rest.losses, whole.losses, rtol=1e-5)
    checks.assert_same_state(rest.model, whole.model)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    checks.assert_same_state(loaded, whole.model, rtol=0, atol=0)


#: How tokens are chosen.
WAYS = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 2},
}


def generator(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name][0]().eval()
    model.generation_config.eos_token_id = WORDS - 1  # type: ignore[union-attr]
    model.generation_config.pad_token_id = 0  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate_with_a_static_cache(name: str) -> None:
    """The CPU's tokens, and as many programs for 12 as for 20 of them."""
    words = torch.arange(2 * 8).reshape(2, 8) % (WORDS - 2) + 1
    expected = generator(name)
    model = generator(name).to("xla")
    compilations = {}
    for tokens in (12, 20):
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "cache_implementation": "static"}
        program_cache.cache.clear()
        with checks.on_xla(model) as moved:
            found = model.generate(words.to("xla"), do_sample=False, **options)  # type: ignore[operator]
        compilations[tokens] = moved.compilations
        assert found.cpu().tolist() == expected.generate(words, do_sample=False, **options).tolist()  # type: ignore[operator]
    assert compilations[12] == compilations[20] <= 8


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_first_call_of_64_tokens(name: str, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's tokens by at most 8 programs, where nothing is compiled yet.

    With a dynamic cache every token makes another graph: they are not compiled, but for the first.
    """
    words = torch.arange(2 * 8).reshape(2, 8) % (WORDS - 2) + 1
    expected, model = generator(name), generator(name).to("xla")
    options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "cache_implementation": cache}
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", "auto")
    program_cache.cache.clear()
    compile_policy.reset()
    with counts() as moved:
        found = model.generate(words.to("xla"), **options)  # type: ignore[operator]
    checks.assert_lives_on_xla(model)
    assert not moved.fallbacks and moved.compilations <= 8 and moved["InterpreterUnsupportedGraphs"] == 0
    assert moved.executions > 0 if cache == "static" else moved["InterpretedGraphs"] >= 56
    assert found.cpu().tolist() == expected.generate(words, **options).tolist()  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore:torch_xla. no torch_xla.sync")  # beam search reads a value of each token
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_generate(name: str, way: str) -> None:
    words = torch.arange(2 * 8).reshape(2, 8) % (WORDS - 2) + 1
    expected = generator(name).generate(words, max_new_tokens=5, **WAYS[way])  # type: ignore[operator]
    found = generator(name).to("xla").generate(words.to("xla"), max_new_tokens=5, **WAYS[way])  # type: ignore[operator]
    assert found.device.type == "xla" and found.cpu().tolist() == expected.tolist()


def test_sampling_takes_numbers_of_the_device() -> None:
    """The same tokens again with the same seed, and others with another; no read for the numbers."""
    words = torch.arange(8).reshape(1, 8).to("xla")
    model = generator("gpt2").to("xla")
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        with checks.on_xla(model):
            found.append(model.generate(words, max_new_tokens=5, do_sample=True, top_k=10).cpu().tolist())  # type: ignore[operator]
    assert found[0] == found[1] != found[2]
