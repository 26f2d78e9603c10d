"""Small models of the transformers library: their settings, and steps of inference with them."""

from collections.abc import Mapping
from typing import Any

from placeto_workloads import TrainingStep, inference_step

WIDTHS = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
DECODER = {**WIDTHS, "num_hidden_layers": 2, "num_key_value_heads": 1, "vocab_size": 30}
# 4 heads of width 4, of which 2 share keys and values
SHARED_HEADS = {**DECODER, "num_attention_heads": 4, "num_key_value_heads": 2}
WINDOW = 8
SLIDING = {**SHARED_HEADS, "sliding_window": WINDOW}
CONTEXT, SEQUENCES = 24, 3
SPEECH = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 40}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
FEED_FORWARD = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30},
    "llama": DECODER,
    "bert": {**WIDTHS, "num_hidden_layers": 2, "vocab_size": 30},
    "electra": {**WIDTHS, "num_hidden_layers": 2, "vocab_size": 30, "embedding_size": 8},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 30},
    "bart": {**SPEECH, **HEADS, **FEED_FORWARD, **ENDS, "max_position_embeddings": 16},
    "mixtral": {**DECODER, "num_local_experts": 4},
    "vit": {**WIDTHS, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8},
    "convnext": {"depths": [1, 1], "hidden_sizes": [4, 8], "num_stages": 2, "image_size": 16},
    "wav2vec2": {
        **WIDTHS,
        "num_hidden_layers": 1,
        "conv_dim": [4, 4],
        "conv_kernel": [4, 2],
        "conv_stride": [4, 2],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "classifier_proj_size": 4,
    },
    "whisper": {
        **SPEECH,
        **HEADS,
        **FEED_FORWARD,
        **ENDS,
        "num_mel_bins": 4,
        "max_source_positions": 6,
        "max_target_positions": 8,
    },
    "mamba": {"hidden_size": 8, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 20},
}
# Decoders with a state: of linear attention, of state spaces, or of convolutions alone.
SSM = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_expand": 2}
WITH_STATES: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {
        **DECODER,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "qwen3_5_text": {
        **DECODER,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "jamba": {
        **DECODER,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 4,
        "mamba_dt_rank": 2,
        "use_mamba_kernels": False,
    },
    "granitemoehybrid": {
        **DECODER,
        **SSM,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 8,
    },
    "lfm2": {**DECODER, "layer_types": ["conv", "full_attention"]},
    "nemotron_h": {
        **DECODER,
        "hybrid_override_pattern": "M*",
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
    },
}
ONE_LAYER = {**WIDTHS, "num_hidden_layers": 1}
IMAGES = {**ONE_LAYER, "image_size": 16, "patch_size": 4}
MORE: Mapping[str, Mapping[str, Any]] = {
    "roberta": {**ONE_LAYER, "vocab_size": 30, "max_position_embeddings": 16},
    "deit": {**IMAGES, "encoder_stride": 4},
    "git": {**ONE_LAYER, "vocab_size": 30, "vision_config": {**IMAGES, "patch_size": 8}},
    "vit_mae": {
        **IMAGES,
        "decoder_hidden_size": 16,
        "decoder_intermediate_size": 24,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
    },
}
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 4,
    "hidden_sizes": [4, 8],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
DETECTOR = {
    **{name: size for name, size in SPEECH.items() if name != "vocab_size"},
    **HEADS,
    **FEED_FORWARD,
    "backbone_config": BACKBONE,
    "num_queries": 5,
}


def small_inference_step(
    name: str, mode: str, settings: Mapping[str, Any], **options: Any
) -> TrainingStep:
    """Return a step of inference with `SEQUENCES` sequences; options are of `inference_step`."""
    return inference_step(
        f"transformers:{name}", mode=mode, batch_size=SEQUENCES, **options, **settings
    )
