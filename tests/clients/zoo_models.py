"""Architectures of transformers as data: a class, what its configuration needs to be tiny, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.clients.zoo_batches import (
    CLIP,
    EXPERTS,
    GPT,
    GROUPED,
    SEQ2SEQ,
    SMALL,
    STAGES,
    T5,
    VIT,
    WAVES,
    WORDS,
    Batch,
    causal,
    image,
    masked,
    pairs,
    pixels,
    translation,
    unlabelled,
    wave,
    words,
)  # fmt: skip


class Architecture(NamedTuple):
    """What is not as one would wish is data: a test fails where it is no longer so."""

    model: str
    config: dict[str, Any]
    batch: Callable[[], Batch]
    programs: int = 1  # of a step: one more for each value that the model asks for in the middle of it
    fallbacks: tuple[str, ...] = ()  # what runs on the CPU
    why: str = ""  # it compiles in each step
    again: str = ""  # the second step compiles one of its programs once more
    double: bool = False  # in float64: it magnifies what float32 rounds, by batch normalization of few elements


A = Architecture
EXPERTS_SPLIT = "the number of tokens per expert is the size of an operand"
EXPERTS_CHOSEN = "the number of tokens per expert is the size of an index"
KEPT = "the first step computes positions that later steps reuse"
DELAYS = "the model reads delays and uses them as constants of the program"

# fmt: off
DECODERS = [
    A("GPT2LMHeadModel", GPT, causal),
    A("GPTNeoForCausalLM", SMALL | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
      "window_size": 4}, causal),
    A("GPTNeoXForCausalLM", SMALL, causal),
    A("GPTJForCausalLM", GPT | {"rotary_dim": 4}, causal),
    A("CodeGenForCausalLM", GPT | {"rotary_dim": 4}, causal),
    A("GPTBigCodeForCausalLM", GPT, causal),
    A("OPTForCausalLM", SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32}, causal),
    A("BloomForCausalLM", SMALL | {"n_layer": 2, "n_head": 4}, masked),
    A("LlamaForCausalLM", GROUPED, causal),
    A("MistralForCausalLM", GROUPED | {"sliding_window": 4}, causal),
    A("Qwen2ForCausalLM", GROUPED, masked, programs=3),
    A("Qwen3ForCausalLM", GROUPED, causal),
    A("GemmaForCausalLM", GROUPED, causal),
    A("Gemma2ForCausalLM", GROUPED | {"sliding_window": 4}, causal),
    A("Gemma3ForCausalLM", GROUPED | {"sliding_window": 4}, causal),
    A("PhiForCausalLM", SMALL, causal),
    A("Phi3ForCausalLM", GROUPED, causal),
    A("FalconForCausalLM", SMALL, causal),
    A("MptForCausalLM", SMALL | {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "expansion_ratio": 2},
      causal),
    A("Olmo2ForCausalLM", GROUPED, causal),
    A("StableLmForCausalLM", GROUPED, causal),
    A("Starcoder2ForCausalLM", GROUPED, causal),
    A("CohereForCausalLM", GROUPED, causal),
    A("GraniteForCausalLM", GROUPED, causal),
    A("Glm4ForCausalLM", GROUPED, causal),
    A("SmolLM3ForCausalLM", GROUPED, causal),
    A("NemotronForCausalLM", GROUPED, causal),
    A("PersimmonForCausalLM", SMALL, causal),
    A("XGLMForCausalLM", SMALL | {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4}, causal),
    A("BioGptForCausalLM", SMALL, causal, programs=2),
    A("CTRLLMHeadModel", GPT | {"dff": 64}, causal),
    A("Exaone4ForCausalLM", GROUPED | {"sliding_window": 4}, causal),
]
EXPERT_MODELS = [
    A("MixtralForCausalLM", EXPERTS, causal),
    A("Qwen2MoeForCausalLM", EXPERTS | {"shared_expert_intermediate_size": 32, "output_router_logits": True}, causal),
    A("Qwen3MoeForCausalLM", EXPERTS, masked, programs=3),
    A("OlmoeForCausalLM", EXPERTS, causal),
    A("GptOssForCausalLM", EXPERTS | {"sliding_window": 4}, causal),
    A("GraniteMoeForCausalLM", EXPERTS, causal),
    A("PhimoeForCausalLM", EXPERTS | {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0}, causal),
    A("JetMoeForCausalLM", SMALL | {"kv_channels": 8, "num_local_experts": 4, "num_key_value_heads": 2,
      "num_experts_per_tok": 2}, causal, programs=5, why=EXPERTS_SPLIT),
    A("DeepseekV3ForCausalLM", EXPERTS | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace":
      1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
      "num_key_value_heads": 4, "head_dim": 4}, causal),
    A("Ernie4_5_MoeForCausalLM", EXPERTS | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0,
      "moe_num_shared_experts": 1}, causal),
    A("DbrxForCausalLM", {"vocab_size": WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
      "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"ffn_hidden_size": 32,
      "moe_num_experts": 4, "moe_top_k": 2}}, causal, programs=19, fallbacks=("aten::nonzero",), why=EXPERTS_CHOSEN),
    A("Glm4MoeForCausalLM", EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group":
      1}, causal),
    A("SwitchTransformersForConditionalGeneration", T5 | {"num_experts": 4, "num_sparse_encoder_layers": 1,
      "num_sparse_decoder_layers": 1, "router_jitter_noise": 0.0}, translation, programs=20,
      fallbacks=("aten::nonzero",), why=EXPERTS_CHOSEN),
]
STATES = [
    A("MambaForCausalLM", SMALL | {"state_size": 8}, causal),
    A("Mamba2ForCausalLM", SMALL | {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
      causal),
    A("FalconMambaForCausalLM", SMALL | {"state_size": 8}, causal),
    A("RwkvForCausalLM", SMALL | {"attention_hidden_size": 32, "context_length": 64}, causal),
    A("JambaForCausalLM", EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
      "expert_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False}, causal),
    A("BambaForCausalLM", GROUPED | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
      "mamba_chunk_size": 8, "attn_layer_indices": [1]}, causal),
    A("Zamba2ForCausalLM", SMALL | {"mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1,
      "chunk_size": 8, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "num_mem_blocks": 1,
      "use_mamba_kernels": False, "num_key_value_heads": 4}, causal),
    A("RecurrentGemmaForCausalLM", GROUPED | {"lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 8},
      causal),
    A("Lfm2ForCausalLM", GROUPED | {"full_attn_idxs": [1]}, causal),
    A("Qwen3NextForCausalLM", EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim":
      8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "shared_expert_intermediate_size": 32}, causal),
    A("GraniteMoeHybridForCausalLM", EXPERTS | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
      "mamba_n_groups": 1, "mamba_chunk_size": 8, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32,
      "position_embedding_type": "rope"}, causal),
]
ENCODERS = [
    A("BertForMaskedLM", SMALL, masked, programs=2),
    A("RobertaForMaskedLM", SMALL | {"max_position_embeddings": 80}, masked, programs=2),
    A("AlbertForMaskedLM", SMALL | {"embedding_size": 16}, masked, programs=2),
    A("ElectraForPreTraining", SMALL | {"embedding_size": 16}, lambda: masked() | {"labels": torch.randint(0, 2, (2,
      12))}, programs=3, fallbacks=("aten::index.Tensor",)),
    A("ElectraForMaskedLM", SMALL | {"embedding_size": 16}, masked, programs=2),
    A("DebertaForMaskedLM", SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, masked),
    A("DebertaV2ForMaskedLM", SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets":
      8, "share_att_key": True}, masked),
    A("DistilBertForMaskedLM", SMALL | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, masked, programs=2),
    A("MPNetForMaskedLM", SMALL, masked, programs=2),
    A("XLNetLMHeadModel", {"vocab_size": WORDS} | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, masked),
    A("FunnelForMaskedLM", {"vocab_size": WORDS} | {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64,
      "block_sizes": [1, 1], "num_decoder_layers": 1}, masked),
    A("LongformerForMaskedLM", SMALL | {"attention_window": 4, "max_position_embeddings": 80}, masked, programs=2),
    A("BigBirdForMaskedLM", SMALL | {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}, lambda:
      {"input_ids": (ids := words(24)), "labels": ids}, programs=2),
    A("NystromformerForMaskedLM", SMALL | {"num_landmarks": 4, "segment_means_seq_len": 12}, causal, programs=3),
    A("FNetForMaskedLM", SMALL | {"type_vocab_size": 2}, causal),
    A("MobileBertForMaskedLM", SMALL | {"embedding_size": 16, "intra_bottleneck_size": 16}, masked, programs=2),
    A("ConvBertForMaskedLM", SMALL | {"embedding_size": 16, "head_ratio": 2}, masked, programs=2),
    A("SqueezeBertForMaskedLM", SMALL | {"embedding_size": 32}, masked, programs=2),
    A("RoFormerForMaskedLM", SMALL, masked, programs=2),
    A("ModernBertForMaskedLM", SMALL | {"local_attention": 4, "global_attn_every_n_layers": 2, "reference_compile":
      False}, masked, programs=3),
    A("EsmForMaskedLM", SMALL | {"mask_token_id": 5, "position_embedding_type": "rotary", "token_dropout": False},
      masked, programs=2),
    A("CanineForTokenClassification", SMALL | {"num_hash_buckets": 32, "downsampling_rate": 2,
      "local_transformer_stride": 4, "num_labels": 4}, lambda: {"input_ids": words(16), "labels": torch.randint(0, 4,
      (2, 16))}, programs=4),
    A("LayoutLMForMaskedLM", SMALL, lambda: masked() | {"bbox": torch.tensor([10, 20, 30, 40]).expand(2, 12,
      4).clone()}),
    A("ReformerForMaskedLM", SMALL | {"attention_head_size": 8, "attn_layers": ["local", "local"],
      "local_attn_chunk_length": 4, "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "feed_forward_size": 64,
      "is_decoder": False}, lambda: {"input_ids": (ids := words(16)), "labels": ids}, programs=2),
    A("PerceiverForMaskedLM", SMALL | {"d_model": 32, "d_latents": 32, "num_latents": 8, "num_blocks": 1,
      "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "qk_channels": 32,
      "v_channels": 32}, lambda: {"inputs": words(64), "labels": words(64)}, programs=2),
    A("BertForQuestionAnswering", SMALL, lambda: unlabelled() | {"start_positions": torch.tensor([1, 3]),
      "end_positions": torch.tensor([2, 30])}, programs=2),
    A("XLMRobertaForTokenClassification", SMALL | {"num_labels": 5}, lambda: unlabelled() | {"labels": torch.randint(0,
      5, (2, 12))}, programs=2),
]
TRANSLATORS = [
    A("T5ForConditionalGeneration", T5, translation, programs=3),
    A("UMT5ForConditionalGeneration", T5, translation, programs=3),
    A("LongT5ForConditionalGeneration", T5 | {"local_radius": 3, "encoder_attention_type": "local"}, translation,
      programs=2),
    A("BartForConditionalGeneration", SEQ2SEQ, translation, programs=4),
    A("MBartForConditionalGeneration", SEQ2SEQ, translation, programs=4),
    A("PegasusForConditionalGeneration", SEQ2SEQ, translation, programs=4),
    A("M2M100ForConditionalGeneration", SEQ2SEQ, translation, programs=4),
    A("MarianMTModel", SEQ2SEQ, translation, programs=4),
    A("LEDForConditionalGeneration", SEQ2SEQ | {"attention_window": 4, "max_encoder_position_embeddings": 64,
      "max_decoder_position_embeddings": 64}, translation, programs=3),
    A("BlenderbotForConditionalGeneration", SEQ2SEQ, translation, programs=4),
    A("ProphetNetForConditionalGeneration", {"vocab_size": WORDS, "hidden_size": 32, "max_position_embeddings": 64} |
      {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
      "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 0},
      translation, programs=2),
    A("FSMTForConditionalGeneration", SEQ2SEQ | {"src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["en",
      "de"]}, lambda: masked() | {"labels": words(12)}, programs=2),
]
VISION = [
    A("ViTForImageClassification", VIT, image),
    A("DeiTForImageClassification", VIT, image),
    A("BeitForImageClassification", VIT, image),
    A("SwinForImageClassification", STAGES | {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
      "window_size": 4}, image),
    A("Swinv2ForImageClassification", STAGES | {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
      "window_size": 4}, image),
    A("ConvNextForImageClassification", STAGES | {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, image),
    A("ConvNextV2ForImageClassification", STAGES | {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
      image),
    A("ResNetForImageClassification", STAGES | {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
      image),
    A("RegNetForImageClassification", STAGES | {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
      "groups_width": 8}, image),
    A("MobileNetV2ForImageClassification", STAGES | {"depth_multiplier": 0.25, "depth_divisible_by": 8, "min_depth": 8},
      lambda: image(64), double=True),
    A("MobileViTForImageClassification", STAGES | {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24,
      32, 32], "num_attention_heads": 4}, lambda: image(64)),
    A("EfficientNetForImageClassification", STAGES | {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim":
      320}, image),
    A("SegformerForSemanticSegmentation", {"num_labels": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
      "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16}, lambda: pixels() | {"labels": torch.randint(0, 4,
      (2, 32, 32))}),
    A("Dinov2ForImageClassification", VIT, image),
    A("PoolFormerForImageClassification", {"num_labels": 4, "hidden_sizes": [8, 16], "depths": [1, 1],
      "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]}, image),
    A("PvtForImageClassification", STAGES | {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2,
      "sequence_reduction_ratios": [2, 1], "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2],
      "mlp_ratios": [2, 2]}, image),
    A("LevitForImageClassification", STAGES | {"image_size": 64, "hidden_sizes": [16, 16, 16], "num_attention_heads":
      [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, lambda: image(64), double=True),
    A("FocalNetForImageClassification", STAGES | {"patch_size": 4, "embed_dim": 16, "depths": [1, 1], "focal_levels":
      [1, 1], "focal_windows": [3, 3], "hidden_sizes": [16, 32]}, image),
    A("ViTMAEForPreTraining", VIT | {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1,
      "decoder_num_attention_heads": 2, "decoder_intermediate_size": 32}, lambda: pixels() | {"noise": torch.rand(2,
      16)}),
    A("HieraForImageClassification", STAGES | {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1],
      "num_heads": [1, 2, 4], "mlp_ratio": 2.0, "query_stride": [2, 2], "masked_unit_size": [4, 4], "num_query_pool": 2,
      "patch_stride": [4, 4]}, lambda: image(64)),
    A("YolosModel", VIT | {"image_size": [32, 32], "num_detection_tokens": 4}, pixels),
    A("DPTForSemanticSegmentation", VIT | {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
      "neck_hidden_sizes": [8, 16, 16, 16], "fusion_hidden_size": 16, "is_hybrid": False}, lambda: pixels() | {"labels":
      torch.randint(0, 4, (2, 32, 32))}),
    A("UperNetForSemanticSegmentation", {"num_labels": 4, "hidden_size": 16, "auxiliary_in_channels": 32, "pool_scales":
      [1, 2], "backbone_config": {"model_type": "convnext", "hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1],
      "out_features": ["stage1", "stage2", "stage3", "stage4"]}}, lambda: pixels(64) | {"labels": torch.randint(0, 4,
      (2, 64, 64))}),
    A("VideoMAEForVideoClassification", VIT | {"num_frames": 4}, lambda: {"pixel_values": torch.randn(2, 4, 3, 32, 32),
      "labels": torch.tensor([0, 3])}),
    A("TimesformerForVideoClassification", VIT | {"num_frames": 4}, lambda: {"pixel_values": torch.randn(2, 4, 3, 32,
      32), "labels": torch.tensor([0, 3])}),
    A("SwiftFormerForImageClassification", STAGES | {"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16],
      "drop_path_rate": 0.0}, lambda: image(64)),
    A("BitForImageClassification", STAGES | {"embedding_size": 16, "hidden_sizes": [32, 32], "depths": [1, 1],
      "num_groups": 4}, image),
    A("VitDetModel", VIT | {"window_block_indices": [0], "window_size": 2, "use_relative_position_embeddings": True},
      pixels),
    A("DetrModel", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
      "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_queries": 4, "use_timm_backbone":
      False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": {"model_type": "resnet",
      "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "out_features": ["stage2"]}}, pixels,
      programs=4),
    A("SamVisionModel", VIT | {"output_channels": 16, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 64,
      "num_pos_feats": 8}, pixels),
]
AUDIO = [
    A("Wav2Vec2ForCTC", WAVES, wave, programs=5, fallbacks=("aten::index.Tensor", "aten::masked_select",)),
    A("HubertForCTC", WAVES, wave, programs=5, fallbacks=("aten::index.Tensor", "aten::masked_select",)),
    A("WavLMForCTC", WAVES | {"num_buckets": 8, "max_bucket_distance": 16}, wave, programs=5,
      fallbacks=("aten::index.Tensor", "aten::masked_select",)),
    A("UniSpeechForCTC", WAVES, wave, programs=5, fallbacks=("aten::index.Tensor", "aten::masked_select",)),
    A("Data2VecAudioForCTC", WAVES | {"num_conv_pos_embeddings": 2}, wave, programs=5, fallbacks=("aten::index.Tensor",
      "aten::masked_select",)),
    A("Wav2Vec2ConformerForCTC", WAVES | {"position_embeddings_type": "rotary", "conv_depthwise_kernel_size": 3}, wave,
      programs=5, fallbacks=("aten::index.Tensor", "aten::masked_select",), again=KEPT),
    A("SEWForCTC", WAVES | {"squeeze_factor": 2}, wave, programs=5, fallbacks=("aten::index.Tensor",
      "aten::masked_select",)),
    A("Wav2Vec2BertForCTC", SMALL | {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 3,
      "mask_time_length": 2}, lambda: {"input_features": torch.randn(2, 20, 16), "labels": words(4)}, programs=5,
      fallbacks=("aten::index.Tensor", "aten::masked_select",)),
    A("WhisperForConditionalGeneration", SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 16,
      "max_target_positions": 16}, lambda: {"input_features": torch.randn(2, 8, 32), "labels": words(8)}),
    A("ASTForAudioClassification", SMALL | {"num_labels": 4, "max_length": 32, "num_mel_bins": 16, "patch_size": 8,
      "frequency_stride": 4, "time_stride": 4}, lambda: {"input_values": torch.randn(2, 32, 16), "labels":
      torch.tensor([0, 3])}),
    A("Speech2TextForConditionalGeneration", SEQ2SEQ | {"input_feat_per_channel": 8, "conv_channels": 16,
      "num_conv_layers": 1, "conv_kernel_sizes": [3], "max_source_positions": 64, "max_target_positions": 32}, lambda:
      {"input_features": torch.randn(2, 20, 8), "labels": words(8)}),
    A("MoonshineForConditionalGeneration", SMALL | {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1,
      "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "decoder_start_token_id": 1}, lambda:
      {"input_values": torch.randn(2, 2000), "labels": words(8)}),
    A("SpeechT5ForSpeechToText", WAVES | {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
      "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1}, wave,
      programs=2, fallbacks=("aten::index.Tensor",)),
    A("EncodecModel", {"num_filters": 4, "hidden_size": 8, "upsampling_ratios": [4, 2], "codebook_size": 16,
      "codebook_dim": 8, "num_lstm_layers": 1, "target_bandwidths": [24.0], "sampling_rate": 24000}, lambda:
      {"input_values": torch.randn(2, 1, 256)}, programs=37),
    A("UnivNetModel", {"model_in_channels": 8, "model_hidden_channels": 8, "num_mel_bins": 8, "resblock_kernel_sizes":
      [3], "resblock_stride_sizes": [2], "resblock_dilation_sizes": [[1, 3]], "kernel_predictor_num_blocks": 1,
      "kernel_predictor_hidden_channels": 8}, lambda: {"input_features": torch.randn(2, 8, 8), "noise_sequence":
      torch.randn(2, 8, 8)}),
]
MULTIMODAL = [
    A("CLIPModel", CLIP, pairs),
    A("SiglipModel", {"text_config": SMALL, "vision_config": VIT}, pairs),
    A("AltCLIPModel", CLIP | {"text_config": SMALL | {"project_dim": 16, "max_position_embeddings": 80}}, pairs),
    A("ChineseCLIPModel", CLIP, pairs),
    A("LlavaForConditionalGeneration", {"text_config": GROUPED | {"model_type": "llama"}, "vision_config": VIT |
      {"model_type": "clip_vision_model"}, "image_token_index": 63, "image_token_id": 63, "vision_feature_layer": -1},
      lambda: pixels() | {"input_ids": (ids := torch.cat([torch.full((2, 16), 63), torch.randint(3, 60, (2, 8))], 1)),
      "labels": ids}, programs=3),
    A("PaliGemmaForConditionalGeneration", {"text_config": GROUPED | {"model_type": "gemma"}, "vision_config": VIT |
      {"model_type": "siglip_vision_model", "projection_dim": 32}, "image_token_index": 63, "image_token_id": 63,
      "projection_dim": 32, "hidden_size": 32}, lambda: pixels() | {"input_ids": (ids := torch.cat([torch.full((2, 16),
      63), torch.randint(3, 60, (2, 8))], 1)), "labels": ids, "token_type_ids": torch.cat([torch.zeros(2, 20),
      torch.ones(2, 4)], 1).long()}, programs=4),
    A("ViltForQuestionAnswering", SMALL | VIT | {"num_labels": 4, "max_image_length": -1}, lambda: pixels() |
      {"input_ids": words(), "labels": torch.rand(2, 4)}, programs=20, fallbacks=("aten::_unique2",
      "aten::index.Tensor", "aten::nonzero",)),
    A("BlipForConditionalGeneration", {"text_config": SMALL | {"encoder_hidden_size": 32}, "vision_config": VIT,
      "projection_dim": 16}, lambda: pixels() | causal()),
    A("GitForCausalLM", SMALL | {"vision_config": VIT}, lambda: pixels() | causal()),
    A("LxmertForPreTraining", SMALL | {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16,
      "num_object_labels": 4, "num_attr_labels": 4, "num_qa_labels": 4, "task_obj_predict": False, "task_qa": False},
      lambda: masked() | {"visual_feats": torch.randn(2, 5, 16), "visual_pos": torch.rand(2, 5, 4)}),
    A("VisionTextDualEncoderModel", {"text_config": SMALL | {"model_type": "bert"}, "vision_config": VIT |
      {"model_type": "vit"}, "projection_dim": 16}, pairs),
    A("OwlViTModel", {"text_config": SMALL | {"max_position_embeddings": 16}, "vision_config": VIT, "projection_dim":
      16}, pairs),
]
SERIES = [
    A("PatchTSTForPrediction", {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8,
      "d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "prediction_length": 4}, lambda:
      {"past_values": torch.randn(2, 32, 2), "future_values": torch.randn(2, 4, 2)}),
    A("PatchTSMixerForPrediction", {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8,
      "d_model": 16, "num_layers": 2, "prediction_length": 4}, lambda: {"past_values": torch.randn(2, 32, 2),
      "future_values": torch.randn(2, 4, 2)}),
    A("TimeSeriesTransformerForPrediction", {"prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2],
      "num_time_features": 1, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
      "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2}, lambda: {"past_values":
      torch.randn(2, 18), "past_time_features": torch.randn(2, 18, 1), "past_observed_mask": torch.ones(2, 18),
      "future_values": torch.randn(2, 4), "future_time_features": torch.randn(2, 4, 1)}, programs=7),
    A("AutoformerForPrediction", {"prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2],
      "num_time_features": 1, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
      "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "moving_average": 3}, lambda:
      {"past_values": torch.randn(2, 18), "past_time_features": torch.randn(2, 18, 1), "past_observed_mask":
      torch.ones(2, 18), "future_values": torch.randn(2, 4), "future_time_features": torch.randn(2, 4, 1)}, programs=51,
      why=DELAYS),
    A("DecisionTransformerModel", {"state_dim": 3, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4,
      "max_ep_len": 16, "n_positions": 64}, lambda: {"states": torch.randn(2, 4, 3), "actions": torch.randn(2, 4, 2),
      "rewards": torch.randn(2, 4, 1), "returns_to_go": torch.randn(2, 4, 1), "timesteps": torch.arange(4).repeat(2, 1),
      "attention_mask": torch.ones(2, 4)}, programs=2),
]
# fmt: on

FAMILIES = {
    "decoder": DECODERS, "experts": EXPERT_MODELS, "state space": STATES, "encoder": ENCODERS,
    "encoder-decoder": TRANSLATORS, "vision": VISION, "audio": AUDIO, "multimodal": MULTIMODAL, "series": SERIES,
}  # fmt: skip


#: Models of timm, for pictures of 64 x 64; those that have to be told the size, and those that are trained in float64
#: (see Architecture.double).
TIMM = [
    "resnet18", "resnext26ts", "regnetx_002", "regnety_002", "mobilenetv3_small_050", "xcit_nano_12_p16_224",
    "convnext_atto", "convnextv2_atto", "edgenext_xx_small", "mobilevit_xxs", "mobilevitv2_050", "poolformer_s12",
    "pvt_v2_b0", "twins_pcpvt_small", "fastvit_t8", "starnet_s050", "mambaout_femto", "tiny_vit_5m_224",
    "crossvit_9_240", "inception_next_atto",
]  # fmt: skip
TIMM_SIZED = [
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "coat_lite_tiny", "levit_128s", "mixer_s32_224",
    "gmlp_ti16_224", "resmlp_12_224", "pit_ti_224", "eva02_tiny_patch14_224", "swin_s3_tiny_224", "cait_xxs24_224",
    "tnt_s_legacy_patch16_224",
]  # fmt: skip
TIMM_DOUBLE = [
    "mobilenetv2_050", "ghostnet_050", "mnasnet_small", "tinynet_e", "lcnet_035", "repvgg_a0", "dla46_c",
    "selecsls42", "hgnetv2_b0", "efficientvit_b0", "efficientvit_m0", "hrnet_w18_small",
]  # fmt: skip
