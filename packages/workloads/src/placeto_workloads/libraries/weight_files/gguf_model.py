"""The model in a GGUF file: its configuration for transformers, and the bytes of its parameters."""

import re
from collections.abc import Collection, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import import_library, such_as
from placeto_workloads.libraries.weight_files.gguf_header import GgufHeader, read_gguf
from placeto_workloads.libraries.weight_files.stored import StoredModel, StoredTensor, shape_text

# The model type of transformers, by what GGUF calls the architecture.
MODEL_TYPES = {
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
LLAMA_WITH_EXPERTS = "mixtral"  # what GGUF calls llama, too
# Settings of configurations, by the name of the value in the file. What changes no cost, as the
# base of rotary embeddings, is left as transformers has it.
SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
}
SETTINGS_OF_SOME = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_used_count": "num_experts_per_tok",
    "feed_forward_length": "intermediate_size",
}
LARGEST_SETTING = 2**24
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
BLOCK = re.compile(r"blk\.([0-9]+)\.")
SUFFIX = re.compile(r"[._](weight|bias)")
FUSED = "gate_up_proj"  # of experts, which are two tensors in a file
NO_PARAMETERS = re.compile(r"rope_(freqs|factors_(long|short))\.weight|.*\.attn_rot_embd")


class GgufModel(StoredModel):
    """The model in a GGUF file."""

    def __init__(self, path: Path) -> None:
        header = read_gguf(path)
        self.architecture = _architecture(path, header)
        super().__init__(path, _config(path, self.architecture, header), header.tensors)

    def parameter_bytes(self, model: nn.Module) -> dict[str, int]:
        tensors = self.tensors
        names = dict(model.named_parameters())
        tensors_of = tensor_names(
            names, self.architecture, self.config["num_hidden_layers"], tensors
        )
        for name, parameter in names.items():
            stored = [tensors[tensor] for tensor in tensors_of[name]]
            if not stored:
                raise WorkloadError(f"{self.path}: expected a tensor of {name}, got none")
            if not _fits(tuple(parameter.shape), stored):
                raise WorkloadError(
                    f"{self.path}: expected {' and '.join(tensors_of[name])} of the shape "
                    f"{shape_text(parameter.shape)}, as its metadata says, got "
                    f"{' and '.join(shape_text(tensor.shape) for tensor in stored)}"
                )
        known = {each for used in tensors_of.values() for each in used}
        others = (name for name in tensors if name not in known)
        self.warn_of_others([name for name in others if not NO_PARAMETERS.fullmatch(name)])
        return {
            name: sum(tensors[tensor].num_bytes for tensor in used)
            for name, used in tensors_of.items()
        }


def tensor_names(
    parameters: Iterable[str], architecture: str, num_layers: int, tensors: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the tensors of a GGUF file that hold each parameter of a model of transformers.

    Examples
    --------
    >>> layer = "model.layers.1"
    >>> names = [f"{layer}.self_attn.q_proj.weight", f"{layer}.mlp.experts.gate_up_proj"]
    >>> tensors = ["blk.1.attn_q.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"]
    >>> list(tensor_names(names, "qwen3moe", 2, tensors).values())
    [('blk.1.attn_q.weight',), ('blk.1.ffn_gate_exps.weight', 'blk.1.ffn_up_exps.weight')]
    """
    gguf = import_library("gguf", "gguf")
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], num_layers)
    result: dict[str, tuple[str, ...]] = {}
    for parameter in parameters:
        suffix = SUFFIX.search(parameter, len(parameter) - len("_weight"))
        stem = parameter if suffix is None else parameter[: suffix.start()]
        kind = "weight" if suffix is None else suffix[1]
        parts = [stem]
        if stem.endswith(FUSED) and f"{known.get_name(stem)}.{kind}" not in tensors:
            parts = [stem.removesuffix(FUSED) + part for part in ("gate_proj", "up_proj")]
        found = [f"{known.get_name(part)}.{kind}" for part in parts]
        result[parameter] = tuple(found) if all(name in tensors for name in found) else ()
    return result


def _architecture(path: Path, header: GgufHeader) -> str:
    architecture = header.metadata.get("general.architecture")
    if architecture not in MODEL_TYPES:
        raise WorkloadError(
            f"{path}: expected general.architecture to be one of {', '.join(MODEL_TYPES)}"
            f"{such_as(str(architecture), MODEL_TYPES)}, got {architecture!r}"
        )
    return str(architecture)


def _config(path: Path, architecture: str, header: GgufHeader) -> dict[str, Any]:
    metadata, tensors = header.metadata, header.tensors
    values = {
        setting: _number(path, metadata, f"{architecture}.{key}")
        for key, setting in {**SETTINGS, **SETTINGS_OF_SOME}.items()
        if key in SETTINGS or metadata.get(f"{architecture}.{key}", 0) != 0
    }
    if "num_experts" in values and "num_experts_per_tok" not in values:
        raise WorkloadError(
            f"{path}: expected {architecture}.expert_used_count, as there are experts, got none"
        )
    if EMBEDDING not in tensors:
        raise WorkloadError(f"{path}: expected a tensor {EMBEDDING}, got none")
    blocks = {int(found[1]) for found in map(BLOCK.match, tensors) if found}
    if len(blocks) != values["num_hidden_layers"] or max(blocks) >= len(blocks):
        raise WorkloadError(
            f"{path}: expected tensors of {values['num_hidden_layers']:,} blocks, as "
            f"{architecture}.block_count says, got those of {len(blocks):,}"
        )
    heads = values["num_attention_heads"]
    if "head_dim" not in values and values["hidden_size"] % heads:
        raise WorkloadError(
            f"{path}: expected a number of {architecture}.attention.head_count that divides "
            f"{values['hidden_size']:,}, got {heads:,}"
        )
    values.setdefault("num_key_value_heads", heads)
    _check_counts(path, values)
    is_mixtral = architecture == "llama" and "num_experts" in values
    return {
        "model_type": LLAMA_WITH_EXPERTS if is_mixtral else MODEL_TYPES[architecture],
        "dtype": "bfloat16",  # of what is computed, and of the cache: as wide as that of llama.cpp
        "vocab_size": tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": OUTPUT not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "pad_token_id": None,  # that of transformers may be none of the words
        **values,
    }


def _check_counts(path: Path, values: Mapping[str, int]) -> None:
    for key, limit, most in (
        ("num_key_value_heads", "num_attention_heads", values["num_attention_heads"]),
        ("num_experts_per_tok", "num_experts", values.get("num_experts", 0)),
    ):
        if values.get(key, 0) > most:
            raise WorkloadError(
                f"{path}: expected a {key} of at most the {limit} {most:,}, got {values[key]:,}"
            )


def _number(path: Path, metadata: Mapping[str, Any], key: str) -> int:
    """Return a whole number; where there is one for each layer, all have to be equal."""
    value = metadata.get(key)
    if isinstance(value, list) and value and value.count(value[0]) == len(value):
        value = value[0]
    if type(value) is not int or not 1 <= value <= LARGEST_SETTING:
        raise WorkloadError(
            f"{path}: expected {key} to be a whole number from 1 to {LARGEST_SETTING:,}, the same "
            f"for all layers, got {'none' if value is None else f'{value!r:.50}'}"
        )
    return value


def _fits(shape: tuple[int, ...], stored: Collection[StoredTensor]) -> bool:
    """Return whether a parameter is in these tensors; one may be transposed, or have sizes of 1."""
    if len(stored) > 1:
        return prod(shape) == sum(prod(tensor.shape) for tensor in stored)
    (only,) = stored
    sizes, stored_sizes = ([size for size in each if size > 1] for each in (shape, only.shape))
    return sorted(sizes) == sorted(stored_sizes)
