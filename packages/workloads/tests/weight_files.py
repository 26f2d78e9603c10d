"""Files of weights of tiny models, as the libraries of their formats write them."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from placeto_workloads import TrainingStep, inference_step

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
UNTIED = {"tie_word_embeddings": False}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Tiny configurations, by the name that GGUF has of an architecture.
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": {"model_type": "gemma", "head_dim": 16},
    "gemma2": {"model_type": "gemma2", "head_dim": 32},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 32},
    "gpt-oss": {"model_type": "gpt_oss", "head_dim": 32, **LOCAL_EXPERTS, **UNTIED},
    "llama": {"model_type": "llama", **UNTIED},
    "olmo2": {"model_type": "olmo2", **UNTIED},
    "phi3": {"model_type": "phi3", "pad_token_id": 0, **UNTIED},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2moe": {"model_type": "qwen2_moe", **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3moe": {"model_type": "qwen3_moe", "head_dim": 32, **EXPERTS, **UNTIED},
    "smollm3": {"model_type": "smollm3", "pad_token_id": 0},
    "starcoder2": {"model_type": "starcoder2"},
}
MIXTRAL = {"model_type": "mixtral", **LOCAL_EXPERTS, **UNTIED}
QUANTIZED = (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0)


def tiny_model(config: dict[str, Any]) -> nn.Module:
    """Return a tiny language model, on the meta device."""
    settings = {**SMALL, **config}
    model_config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings)
    with torch.device("meta"):
        classes: Any = transformers.AutoModelForCausalLM
        model: nn.Module = classes.from_config(model_config)
    return model


def decoding_step(path: Path) -> TrainingStep:
    """Return a step of the model in a file."""
    return inference_step(f"transformers:{path}", mode="decode", context=8)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a model."""
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def write_gguf(
    path: Path, architecture: str, config: dict[str, Any], part_index: int = 0, num_parts: int = 1
) -> dict[str, int]:
    """Write the weights of a tiny model, and return the bytes of each of its parameters there.

    Matrices are in blocks of 4 bits, those of odd layers of 8 bits, and vectors of 32 bits. One of
    several parts has every second, third and so on of the parameters.
    """
    model = tiny_model(config)
    model_config: Any = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(model_config.num_hidden_layers)
    writer.add_context_length(model_config.max_position_embeddings)
    writer.add_embedding_length(model_config.hidden_size)
    writer.add_feed_forward_length(model_config.intermediate_size)
    writer.add_head_count(model_config.num_attention_heads)
    writer.add_head_count_kv(model_config.num_key_value_heads)
    if "head_dim" in config:
        writer.add_key_length(model_config.head_dim)
    for setting, add in {
        "num_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
    }.items():
        if (value := getattr(model_config, setting, None)) is not None:
            add(value)
    writer.add_token_list([f"word{index}" for index in range(model_config.vocab_size)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * model_config.vocab_size)
    if num_parts > 1:
        writer.add_uint16("split.no", part_index)
        writer.add_uint16("split.count", num_parts)
    num_bytes = {}
    for name, parameter in [*model.named_parameters()][part_index::num_parts]:
        tensors = stored_tensors(name, tuple(parameter.shape), architecture, model_config)
        num_bytes[name] = sum(_add(writer, tensor, shape) for tensor, shape in tensors.items())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return num_bytes


def stored_tensors(
    parameter: str, shape: tuple[int, ...], architecture: str, config: Any
) -> dict[str, tuple[int, ...]]:
    """Return the tensors that llama.cpp's converter makes of a parameter, with their shapes."""
    ids = {name: architecture_id for architecture_id, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(ids[architecture], config.num_hidden_layers)
    match = re.fullmatch(r"(.+?)(?:[._](weight|bias))?", parameter)
    assert match is not None
    stem, kind = match[1], match[2] or "weight"
    if architecture == "gpt-oss" and len(shape) == 3:
        shape = (shape[0], shape[2], shape[1])
    if "experts.gate_up_proj" not in parameter:
        return {f"{names.get_name(stem)}.{kind}": shape}
    halves = [stem.replace("gate_up_proj", half) for half in ("gate_proj", "up_proj")]
    half = (shape[0], shape[1] // 2, *shape[2:])
    return {f"{names.get_name(stem_half)}.{kind}": half for stem_half in halves}


def _add(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> int:
    """Add zeros of a shape, and return how many bytes they are."""
    if len(shape) == 1 or name.endswith(".bias"):
        values = np.zeros(shape, np.float32)
        writer.add_tensor(name, values)
        return values.nbytes
    is_odd = name.startswith("blk.1.")
    kind = QUANTIZED[is_odd]
    row = shape[-1] // 32 * (34 if is_odd else 18)  # bytes of a block of 32
    blocks = np.zeros((*shape[:-1], row), np.uint8)
    writer.add_tensor(name, blocks, raw_dtype=kind)
    return blocks.nbytes


def write_safetensors(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> Path:
    """Write tensors and the configuration beside them, and return the path of the tensors."""
    settings = {**SMALL, **config}
    model_config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings)
    model_config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"
