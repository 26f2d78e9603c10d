"""GGUF files: what the header says of a model, and the bytes of each of its parameters.

The header is read here, and not by the reader of the `gguf` library. That one makes objects of each
word of the vocabulary, which takes seconds and hundreds of megabytes, and it believes the counts
that it reads. The library gives the types of blocks, their sizes, and the names of tensors.
"""

import mmap
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, count, takewhile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import import_library, such_as
from placeto_workloads.libraries.weight_files import StoredModel, StoredTensor, shape_text

LARGEST_HEADER = 2**26  # bytes; those of models with 256,000 words have some 16 million
LONGEST_ARRAY = 2**12  # that is kept: some have a value for each layer, others for each word
MOST_DIMENSIONS = 4
MOST_ENTRIES = 2**16  # values, and tensors
MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Types of numbers, as `struct` calls them.
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf")
# The model type of transformers, by what GGUF calls the architecture.
MODEL_TYPES = {
    **{name: name for name in ("gemma", "gemma2", "llama", "olmo2", "phi3", "qwen2", "qwen3")},
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "qwen2moe": "qwen2_moe",
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
NO_PARAMETERS = re.compile(r"(rope_(freqs|factors_(long|short))\.weight|.*\.attn_rot_embd)$")


class GgufHeader(NamedTuple):
    """Values by name, where long lists and lists of text are None, and tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufHeader:
    """Return what the header of a GGUF file says; of a model in several, what all of them say."""
    match = PART.fullmatch(path.name)
    if match is None:
        header = _read_part(path)
        if header.metadata.get("split.count", 1) != 1:
            raise WorkloadError(
                f"{path}: expected the name of a part of a model, such as "
                "model-00001-of-00003.gguf, so that the other parts are found beside it"
            )
        return header
    count = int(match["count"])
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, Any] = {}
    for index in range(1, count + 1):
        part_path = path.with_name(f"{match['stem']}-{index:05}-of-{count:05}.gguf")
        header = _read_part(part_path)
        if header.metadata.get("split.count", count) != count:
            raise WorkloadError(f"{part_path}: expected one of {count} parts, as its name says")
        metadata = metadata or header.metadata
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise WorkloadError(f"{part_path}: expected {name} in one part of the model alone")
            tensors[name] = tensor
    return GgufHeader(metadata, tensors)


def _read_part(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < len(MAGIC):
                raise WorkloadError(f"{path}: expected a GGUF file, got one of {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _header(_Cursor(path, data, size))
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error


class _Cursor:
    """A place in a header, which never leaves it."""

    def __init__(self, path: Path, data: mmap.mmap, file_size: int) -> None:
        self.path = path
        self.place = 0
        self._data = data
        self._end = min(file_size, LARGEST_HEADER)

    def skip(self, num_bytes: int) -> int:
        """Go on by so many bytes, and return where they begin."""
        if num_bytes > self._end - self.place:
            raise WorkloadError(
                f"{self.path}: expected a header that ends before byte {self._end:,}, but it says "
                "that it goes on; the file is damaged, or cut off"
            )
        start = self.place
        self.place += num_bytes
        return start

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        """Return the next numbers, of a type of `struct`."""
        start = self.skip(count * struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def text(self) -> str:
        length = self.number("Q")
        start = self.skip(length)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError as error:
            line = f"{self.path}: expected text at byte {start:,}, in UTF-8"
            raise WorkloadError(line) from error

    def skip_texts(self, count: int) -> None:
        """Go on behind so many texts."""
        length = struct.Struct("<Q")
        place, last = self.place, self._end - length.size
        for _ in range(count):
            if place > last:
                break
            place += length.size + length.unpack_from(self._data, place)[0]
        self.skip(place - self.place)


def _header(cursor: _Cursor) -> GgufHeader:
    path = cursor.path
    magic = bytes(cursor.numbers("B", len(MAGIC)))
    if magic != MAGIC:
        raise WorkloadError(f"{path}: expected a GGUF file, got one that begins with {magic!r}")
    version = cursor.number("I")
    if version % 2**16 == 0:
        raise WorkloadError(f"{path}: expected a little-endian GGUF file, got a big-endian one")
    if version not in VERSIONS:
        raise WorkloadError(f"{path}: expected GGUF of version 2 or 3, got version {version}")
    num_tensors, num_values = cursor.numbers("Q", 2)
    if max(num_tensors, num_values) > MOST_ENTRIES:
        raise WorkloadError(
            f"{path}: expected at most {MOST_ENTRIES:,} values and tensors, got {num_values:,} and "
            f"{num_tensors:,}; the file is damaged"
        )
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        if key in metadata:
            raise WorkloadError(f"{path}: expected {key} once, got it twice")
        metadata[key] = _value(cursor, key, cursor.number("I"))
    return GgufHeader(metadata, _tensors(cursor, num_tensors))


def _value(cursor: _Cursor, key: str, kind: int) -> Any:
    if kind == STRING:
        return cursor.text()
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind])
    if kind != ARRAY:
        raise WorkloadError(f"{cursor.path}: expected a known type of {key}, got {kind}")
    element, count = cursor.number("I"), cursor.number("Q")
    if element == STRING:
        cursor.skip_texts(count)
        return None
    if element not in NUMBERS:
        raise WorkloadError(f"{cursor.path}: expected {key} of text or numbers, got type {element}")
    if count > LONGEST_ARRAY:
        cursor.skip(count * struct.calcsize(f"<{NUMBERS[element]}"))
        return None
    return list(cursor.numbers(NUMBERS[element], count))


def _tensors(cursor: _Cursor, count: int) -> dict[str, StoredTensor]:
    """Return the tensors that a header lists; their values need not be in the file."""
    path = cursor.path
    tensors: dict[str, StoredTensor] = {}
    for _ in range(count):
        name = cursor.text()
        if name in tensors:
            raise WorkloadError(f"{path}: expected {name} once, got it twice")
        num_dimensions = cursor.number("I")
        if num_dimensions > MOST_DIMENSIONS:
            raise WorkloadError(
                f"{path}: expected {name} of at most {MOST_DIMENSIONS} dimensions, "
                f"got {num_dimensions}"
            )
        sizes = cursor.numbers("Q", num_dimensions)
        kind, _offset = cursor.number("I"), cursor.number("Q")
        tensors[name] = StoredTensor(sizes[::-1], _num_bytes(path, name, sizes, kind))
    return tensors


def _num_bytes(path: Path, name: str, sizes: tuple[int, ...], kind: int) -> int:
    gguf: Any = import_library("gguf", "gguf")
    try:
        block, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise WorkloadError(
            f"{path}: expected a type of {name} that the gguf library knows, got {kind}; a newer "
            "gguf may know it"
        ) from None
    if not sizes or min(sizes) < 1 or sizes[0] % block:
        raise WorkloadError(
            f"{path}: expected rows of {name} in blocks of {block}, got the shape "
            f"{shape_text(sizes[::-1])}"
        )
    return prod(sizes) // int(block) * int(num_bytes)


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
        used = set(chain(*tensors_of.values()))
        unused = [name for name in tensors if name not in used and not NO_PARAMETERS.match(name)]
        for name, parameter in names.items():
            stored = [tensors[tensor] for tensor in tensors_of[name]]
            if not stored:
                raise self.missing_tensor(name, unused)
            if not _fits(tuple(parameter.shape), stored):
                raise WorkloadError(
                    f"{self.path}: expected {' and '.join(tensors_of[name])} of the shape "
                    f"{shape_text(parameter.shape)}, as its metadata says, got "
                    f"{' and '.join(shape_text(tensor.shape) for tensor in stored)}"
                )
        self.warn_of_unused(unused)
        return {
            name: sum(tensors[tensor].num_bytes for tensor in held_in)
            for name, held_in in tensors_of.items()
        }


def tensor_names(
    parameters: Iterable[str], architecture: str, num_layers: int, tensors: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the tensors of a GGUF file that hold each parameter of a model of transformers.

    Those of ``model.layers.1.mlp.experts.gate_up_proj`` are ``blk.1.ffn_gate_exps.weight`` and
    ``blk.1.ffn_up_exps.weight``.
    """
    gguf = import_library("gguf", "gguf")
    ids = {name: architecture_id for architecture_id, name in gguf.MODEL_ARCH_NAMES.items()}
    name_map = gguf.get_tensor_name_map(ids[architecture], num_layers)
    tensors_of: dict[str, tuple[str, ...]] = {}
    for parameter in parameters:
        suffix = SUFFIX.search(parameter, len(parameter) - len("_weight"))
        stem = parameter if suffix is None else parameter[: suffix.start()]
        kind = "weight" if suffix is None else suffix[1]
        stems = [stem]
        if stem.endswith(FUSED) and f"{name_map.get_name(stem)}.{kind}" not in tensors:
            prefix = stem.removesuffix(FUSED)
            stems = [f"{prefix}gate_proj", f"{prefix}up_proj"]
        names = [_present(f"{name_map.get_name(each_stem)}.{kind}", tensors) for each_stem in stems]
        tensors_of[parameter] = tuple(chain(*names)) if all(names) else ()
    return tensors_of


def _present(name: str, tensors: Collection[str]) -> list[str]:
    """Return a tensor that is there, or those of each expert, which older files have instead."""
    if name in tensors or "_exps" not in name:
        return [name] if name in tensors else []
    expert_names = (name.replace("_exps", f".{expert}") for expert in count())
    return list(takewhile(tensors.__contains__, expert_names))


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
    blocks = {int(match[1]) for match in map(BLOCK.match, tensors) if match}
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
    for key, limit, maximum in (
        ("num_key_value_heads", "num_attention_heads", values["num_attention_heads"]),
        ("num_experts_per_tok", "num_experts", values.get("num_experts", 0)),
    ):
        if values.get(key, 0) > maximum:
            raise WorkloadError(
                f"{path}: expected a {key} of at most the {limit} {maximum:,}, got {values[key]:,}"
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
    (tensor,) = stored
    sizes = sorted(size for size in shape if size > 1)
    return sizes == sorted(size for size in tensor.shape if size > 1)
