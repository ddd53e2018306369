"""Batches and small sizes for models of transformers: what most configurations call them."""

from __future__ import annotations

from typing import Any

import torch

Batch = dict[str, torch.Tensor]
WORDS = 64

#: What most configurations of models of text call their sizes.
SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = GROUPED | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SEQ2SEQ = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2,
}  # fmt: skip
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"pad_token_id": 0, "decoder_start_token_id": 0}
VIT = {"image_size": 32, "patch_size": 8, "num_labels": 4} | {
    name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
STAGES = {"image_size": 32, "num_labels": 4}
_LISTENING = {
    "conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2, "mask_feature_length": 2,
}  # fmt: skip
WAVES = SMALL | _LISTENING
CLIP_TEXT = {k: v for k, v in SMALL.items() if k != "eos_token_id"} | {"eos_token_id": 2}
CLIP = {"text_config": CLIP_TEXT, "vision_config": VIT, "projection_dim": 16}


def words(length: int = 12, first: int = 3, rows: int = 2) -> torch.Tensor:
    return torch.randint(first, WORDS, (rows, length))


def causal() -> Batch:
    ids = words()
    return {"input_ids": ids, "labels": ids}


def masked() -> Batch:
    """The second text is shorter."""
    ids, mask = words(), torch.ones(2, 12, dtype=torch.long)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask > 0, ids, -100)}


def unlabelled() -> Batch:
    return {name: value for name, value in masked().items() if name != "labels"}


def translation() -> Batch:
    return masked() | {"labels": words(8)}


def image(size: int = 32) -> Batch:
    return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.randint(0, 4, (2,))}


def pixels(size: int = 32) -> Batch:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def wave() -> Batch:
    return {"input_values": torch.randn(2, 800), "labels": words(4)}


def pairs() -> Batch:
    return pixels() | {"input_ids": words(), "return_loss": True}  # type: ignore[dict-item]
