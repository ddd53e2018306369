"""Tiny trainers of several libraries, with their data, and a table of metrics: for one device, and for several.

What a trainer is given beside its defaults (``options``) are names of transformers' ``TrainingArguments``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.clients import checks

WORDS = 55
BATCH, STEPS = 8, 4  # a batch of all devices together

_SELECTS = "aten::index.Tensor"  # by a mask
#: Metrics of classes, of numbers; and operations that one runs on the CPU, as sizes of results depend on values.
METRICS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Accuracy": ({"task": "multiclass", "num_classes": 5}, set()),
    "F1Score": ({"task": "multiclass", "num_classes": 5, "average": "macro"}, set()),
    "ConfusionMatrix": ({"task": "multiclass", "num_classes": 5}, set()),
    "AveragePrecision": (
        {"task": "multiclass", "num_classes": 5, "thresholds": 10, "validate_args": False},
        {_SELECTS},
    ),
    "AUROC": ({"task": "multiclass", "num_classes": 5, "thresholds": 10, "validate_args": False}, {_SELECTS}),
    "MeanSquaredError": ({}, set()),
    "R2Score": ({}, set()),
    "PearsonCorrCoef": ({}, {_SELECTS}),
    "MeanAbsoluteError": ({}, set()),
    "SpearmanCorrCoef": ({}, {"aten::_unique2", _SELECTS, "aten::nonzero"}),
}


def tokenizer(folder: Path) -> Any:
    """One of words w0 to w49, whose vocabulary is a file in the folder."""
    transformers = checks.library("transformers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"w{i}" for i in range(WORDS - len(special)))]))
    return transformers.BertTokenizerFast(str(folder / "vocab.txt"))


def llama() -> Any:
    transformers = checks.library("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, eos_token_id=3, bos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def adapted() -> Any:
    """The Llama with adapters, which alone learn."""
    peft = checks.library("peft")
    return peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def save_bert(folder: Path) -> None:
    """The files of a model, and of its tokenizer. In a job of torch.distributed only rank 0 writes all of them."""
    transformers = checks.library("transformers")
    tokenizer(folder).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)


def sentence_transformer(folder: Path, device: str | None = None) -> Any:
    """Made of what ``save_bert`` has written; by default on the device that the library likes."""
    library, models = checks.library("sentence_transformers"), checks.library("sentence_transformers.models")
    parts = [models.Transformer(str(folder)), models.Pooling(32)]
    return library.SentenceTransformer(modules=parts, device=device)


def sft(folder: Path, **options: Any) -> Any:
    """TRL's, of the Llama."""
    trl, datasets = checks.library("trl"), checks.library("datasets")
    words = tokenizer(folder)
    words.eos_token = "[SEP]"
    texts = [" ".join(f"w{(i + j) % 50}" for j in range(10)) for i in range(2 * BATCH)]
    arguments = trl.SFTConfig(
        str(folder / "run"), **_DEFAULTS | {"learning_rate": 5e-3, "max_length": 16, "bf16": False} | options
    )
    data = datasets.Dataset.from_dict({"text": texts})
    return trl.SFTTrainer(llama(), args=arguments, train_dataset=data, processing_class=words)


def lora(folder: Path, **options: Any) -> Any:
    """transformers' Trainer, of the Llama with adapters."""
    transformers = checks.library("transformers")
    words = torch.randint(WORDS, (BATCH, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row.clone()} for row in words]
    arguments = transformers.TrainingArguments(str(folder), **_DEFAULTS | {"learning_rate": 5e-2} | options)
    return transformers.Trainer(adapted(), arguments, train_dataset=data)


def sentences(folder: Path, model: Any, **options: Any) -> Any:
    """sentence-transformers', by a loss between all rows of a batch, whichever device they are on."""
    library, datasets = checks.library("sentence_transformers"), checks.library("datasets")
    losses = checks.library("sentence_transformers.losses")
    data = datasets.Dataset.from_dict(
        {"a": [f"w{i} w{i + 1}" for i in range(BATCH)], "b": [f"w{i + 1} w{i + 2}" for i in range(BATCH)]}
    )
    arguments = library.SentenceTransformerTrainingArguments(
        str(folder / "run"), **_DEFAULTS | {"learning_rate": 1e-3} | options
    )
    loss = losses.MultipleNegativesRankingLoss(model, gather_across_devices=True)
    return library.SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)


_DEFAULTS = {
    "max_steps": STEPS, "per_device_train_batch_size": BATCH, "report_to": [], "logging_steps": 1,
    "save_strategy": "no", "disable_tqdm": True, "lr_scheduler_type": "constant",
}  # fmt: skip


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
