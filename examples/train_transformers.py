"""Train a small BERT with the Trainer of transformers to distinguish Python code from comments, byte by byte.

python examples/train_transformers.py               without a TPU: set PJRT_DEVICE=CPU

Nothing is downloaded: the model is created from a configuration, and the text is Python's standard library. All rows
have the same length, so that the step is one program.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import tempfile
import tokenize
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

LENGTH = 64
PAD = 0  # does not occur in text


def lines(limit: int) -> tuple[list[str], list[str]]:
    """Return lines of code, and lines of comments and docstrings, of Python's standard library."""
    code, words = set[str](), set[str]()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    words.add(token.string.strip("# "))
                elif token.type == tokenize.STRING and token.string.startswith('"""'):
                    words |= {line.strip() for line in token.string.strip('"').splitlines()}
                elif token.type == tokenize.NAME and token.start[1] == len(token.line) - len(token.line.lstrip()):
                    code.add(token.line.strip())
        if min(len(code), len(words)) > 4 * limit:
            break
    rng = random.Random(0)
    return tuple(rng.sample(sorted(line for line in kind if len(line) > 20), limit) for kind in (code, words))  # type: ignore[return-value]


def rows(limit: int) -> list[dict[str, Any]]:
    """Return rows for the Trainer, in random order: bytes, attention mask, and label 0 for code or 1 for comments."""
    found = []
    for label, texts in enumerate(lines(limit)):
        for text in texts:
            ids = list(text.encode("utf-8")[:LENGTH])
            pad = LENGTH - len(ids)
            mask = [1] * len(ids) + [0] * pad
            found.append({"input_ids": ids + [PAD] * pad, "attention_mask": mask, "labels": label})
    random.Random(0).shuffle(found)
    return found


def model() -> BertForSequenceClassification:
    """Return a BERT with 0.5 million weights."""
    config = BertConfig(
        vocab_size=256, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def accuracy(evaluated: Any) -> dict[str, float]:
    """Compute the metric of the Trainer after each epoch."""
    return {"accuracy": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_epochs", type=float, default=3)
    parser.add_argument("--rows", type=int, default=2048, help="rows per class; a tenth is for the test")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--target_accuracy", type=float, default=0.0, help="exit 1 below this test accuracy")
    options = parser.parse_args()
    set_seed(0)
    data = rows(options.rows)
    cut = len(data) // 10 // options.batch_size * options.batch_size or options.batch_size
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=options.num_epochs, per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size, dataloader_drop_last=True, learning_rate=1e-3,
            eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model(), arguments, train_dataset=data[cut:], eval_dataset=data[:cut], compute_metrics=accuracy
        )
        trainer.train()
        found = trainer.evaluate()["eval_accuracy"]
    device = next(trainer.model.parameters()).device
    print(f"{device}: test accuracy {found:.4f} of {cut} lines")
    if found < options.target_accuracy:
        sys.exit(1)


if __name__ == "__main__":
    main()
