"""Models in GGUF and safetensors files: bytes of parameters, and damaged files."""

import json
import os
import random
import re
import struct
import tracemalloc
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from placeto_workloads import WorkloadError
from placeto_workloads.libraries.gguf_files import GgufModel, read_gguf
from placeto_workloads.libraries.weight_files import SafetensorsModel, StoredTensor
from weight_files import (
    CONFIGS,
    MIXTRAL,
    decoding_step,
    shapes,
    tiny_model,
    write_gguf,
    write_safetensors,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*too high for a server")


@pytest.mark.parametrize(
    ("architecture", "config"),
    [*CONFIGS.items(), ("llama", MIXTRAL)],
    ids=lambda parameter: str(parameter)[:9],
)
def test_a_gguf_file_has_the_model_that_it_was_written_of(
    architecture: str, config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    written = write_gguf(path, architecture, config)
    step = decoding_step(path)
    assert shapes(step.model) == shapes(tiny_model(config))
    assert step.parameter_bytes == written


def test_the_tensors_of_mixtral_have_the_names_of_published_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", MIXTRAL)
    block = {
        *("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
        *("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    }
    names = {f"blk.{layer}.{name}.weight" for layer in range(2) for name in block}
    outside = {"token_embd.weight", "output_norm.weight", "output.weight"}
    header = read_gguf(path)
    assert set(header.tensors) == names | outside
    # 4 experts of 96 x 64 in blocks of 32 weights of 4 bits and a scale of 16 bits.
    assert header.tensors["blk.0.ffn_up_exps.weight"].num_bytes == 4 * 96 * 64 // 32 * 18
    step = decoding_step(path)
    experts = "model.layers.1.mlp.experts.gate_up_proj"
    assert dict(step.parameter_bytes or {})[experts] == 2 * 4 * 96 * 64 // 32 * 34
    used = b"llama.expert_used_count" + struct.pack("<I", 4)
    (many_experts := tmp_path / "many.gguf").write_bytes(
        path.read_bytes().replace(used + b"\2", used + b"\5")
    )
    with pytest.raises(WorkloadError, match="of at most the num_experts 4, got 5"):
        decoding_step(many_experts)
    # Files of the first months have a tensor for each expert.
    model = GgufModel(path)
    model.tensors = {
        name.replace("_exps", f".{expert}"): StoredTensor(shape[1:], num_bytes // 4)
        for name, (shape, num_bytes) in header.tensors.items()
        for expert in range(4)
        if expert == 0 or "_exps" in name
    } | {name: tensor for name, tensor in header.tensors.items() if "_exps" not in name}
    assert model.parameter_bytes(tiny_model(MIXTRAL)) == step.parameter_bytes


def test_headers_of_large_files_alone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word{index}" for index in range(20_000)])
    num_bytes = 40 * 10**9
    writer.add_tensor_info("token_embd.weight", (num_bytes // 2,), np.dtype(np.float16), num_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, num_bytes + 10**6)  # takes no room on the disk
    tracemalloc.start()
    header = read_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert header.tensors["token_embd.weight"].num_bytes == num_bytes
    assert header.metadata["tokenizer.ggml.tokens"] is None
    assert peak < 10**6


def test_a_model_may_be_in_several_files(tmp_path: Path) -> None:
    config, whole = CONFIGS["qwen2"], tmp_path / "whole.gguf"
    part_paths = [tmp_path / f"model-0000{index}-of-00002.gguf" for index in (1, 2)]
    expected = write_gguf(whole, "qwen2", config)
    for index, part_path in enumerate(part_paths):
        write_gguf(part_path, "qwen2", config, index, 2)
    for part_path in part_paths:
        model = GgufModel(part_path)
        assert model.config == GgufModel(whole).config
        assert model.parameter_bytes(tiny_model(config)) == expected
    renamed = tmp_path / "model.gguf"
    renamed.write_bytes(part_paths[0].read_bytes())
    with pytest.raises(WorkloadError, match="so that the other parts are found beside it"):
        GgufModel(renamed)
    part_paths[1].unlink()
    with pytest.raises(WorkloadError, match=r"00002-of-00002\.gguf: No such file"):
        GgufModel(part_paths[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small file of llama."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, "llama", CONFIGS["llama"])
    return path.read_bytes()


NORM, QUERY = b"blk.0.attn_norm.weight", b"blk.0.attn_q.weight"
WIDTH, HEADS = b"llama.embedding_length", b"llama.attention.head_count_kv"
COUNT = b"llama.block_count"


Numbers = tuple[int, ...]


def put(key: bytes, form: str, old_numbers: Numbers, new_numbers: Numbers) -> tuple[bytes, bytes]:
    """Return a key with the numbers behind it in the file, and with others."""
    packed = [
        struct.pack(f"<{form}", *values) if values else b"" for values in (old_numbers, new_numbers)
    ]
    return key + packed[0], key + packed[1]


# Bytes, others in their place or behind them, and words of what is said of it.
BAD_BYTES: dict[str, tuple[bytes, bytes, str]] = {
    "big-endian": (b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", "got a big-endian one"),
    "magic": (b"GGUF", b"GGML", "begins with b'GGML'"),
    "tensor twice": (QUERY, b"blk.1.attn_q.weight", "blk.1.attn_q.weight once, got it twice"),
    "no UTF-8": (QUERY, b"blk.0.attn_\xff.weight", "in UTF-8"),
    "architecture": (b"\0llama", b"\0lamma", "such as llama, gemma, got 'lamma'"),
    "no such tensor": (QUERY, b"blk.0.attn_z.weight", "got none, but blk.0.attn_z.weight, which"),
    "no embedding": (b"token_embd", b"token_abcd", "expected a tensor token_embd.weight"),
    "width": (*put(WIDTH, "II", (4, 64), (4, 128)), "as its metadata says, got 128 x 64"),
    "heads of keys": (*put(HEADS, "II", (4, 2), (4, 2**24)), "at most the num_attention_heads 4"),
    "2**60 tensors": (*put(b"GGUF\3\0\0\0", "Q", (), (2**60,)), "at most 65,536 values"),
    "dimensions": (NORM + b"\1", NORM + b"\5", "at most 4 dimensions"),
    "blocks": (*put(QUERY, "IQQ", (2, 64, 64), (2, 8, 512)), "of 32, got the shape 512 x 8"),
    "blocks without tensors": (*put(COUNT, "II", (4, 2), (4, 3)), "got those of 2"),
}


@pytest.mark.parametrize("name", [*BAD_BYTES, "empty", "cut header"])
def test_what_is_wrong_with_a_gguf_file_is_said_in_a_line(
    name: str, written: bytes, tmp_path: Path
) -> None:
    if name in BAD_BYTES:
        old_bytes, new_bytes, words = BAD_BYTES[name]
        assert old_bytes in written
        data = written.replace(old_bytes, new_bytes)
    else:
        data, words = {
            "empty": (b"", "expected a GGUF file, got one of 0 bytes"),
            "cut header": (written[:200], "expected a header that ends before byte 200"),
        }[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(WorkloadError) as caught:
        decoding_step(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_header_of_a_file_is_enough(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    expected = write_gguf(path, "llama", CONFIGS["llama"])
    begin = gguf.GGUFReader(path).data_offset
    assert begin < len(written) == path.stat().st_size
    for extra in (0, 1, 1000):  # as a download of a round number of bytes has some of the weights
        path.write_bytes(written[: begin + extra])
        assert decoding_step(path).parameter_bytes == expected
    path.write_bytes(written[: begin - gguf.GGUF_DEFAULT_ALIGNMENT])
    with pytest.raises(WorkloadError, match="expected a header that ends before byte"):
        decoding_step(path)


def damaged(whole: bytes, end: int, count: int) -> Iterator[bytes]:
    """Yield a file with other bytes before some place, a few times also cut off."""
    generator = random.Random(0)  # noqa: S311 (it keeps no secret)
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 1, 2, 8])):
            position = generator.randrange(end)
            data[position] = generator.choice(
                [0, 255, 0x39, data[position] ^ 1 << generator.randrange(8)]
            )
        if generator.random() < 0.1:
            del data[generator.randrange(len(data)) :]
        yield bytes(data)


def test_no_damage_of_a_file_raises_anything_else(written: bytes, tmp_path: Path) -> None:
    files = {tmp_path / "model.gguf": (written, written.index(b"output.weight") + 40, 3000)}
    plain = write_safetensors(tmp_path, LLAMA, plain_tensors(LLAMA))
    whole = plain.read_bytes()
    files[plain] = whole, 8 + struct.unpack_from("<Q", whole)[0], 500
    model = tiny_model(LLAMA)
    for path, (content, end, count) in files.items():
        refused = 0
        tracemalloc.start()
        for data in damaged(content, end, count):
            path.write_bytes(data)
            try:
                with warnings.catch_warnings(action="ignore"):
                    if path == plain:
                        SafetensorsModel(path).parameter_bytes(model)
                    else:
                        GgufModel(path)
            except WorkloadError as error:
                refused += 1
                assert "\n" not in str(error)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count / 10 < refused < count
        assert peak < 5 * 10**6


LLAMA = CONFIGS["llama"]


def plain_tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    shapes_of_parameters = shapes(tiny_model(config)).items()
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes_of_parameters}


def bytes_in(path: Path, config: dict[str, Any]) -> dict[str, int]:
    step = decoding_step(path)
    assert shapes(step.model) == shapes(tiny_model(config))
    return dict(step.parameter_bytes or {})


PROJECTION = "model.layers.1.mlp.down_proj"  # 64 x 96


def test_a_model_may_be_in_one_or_several_safetensors_files(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA)
    expected = {name: 2 * prod(shape) for name, shape in shapes(tiny_model(LLAMA)).items()}
    whole = write_safetensors(tmp_path, LLAMA, tensors)
    assert bytes_in(whole, LLAMA) == bytes_in(tmp_path, LLAMA) == expected  # or the folder
    whole.unlink()
    files_of_tensors = {
        name: f"model-{index % 2}.safetensors" for index, name in enumerate(tensors)
    }
    for file in set(files_of_tensors.values()):
        save_file(
            {name: tensors[name] for name in tensors if files_of_tensors[name] == file},
            tmp_path / file,
        )
    index_file = tmp_path / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": files_of_tensors}))
    assert bytes_in(index_file, LLAMA) == bytes_in(tmp_path, LLAMA) == expected
    (tmp_path / "model-1.safetensors").write_bytes((tmp_path / "model-0.safetensors").read_bytes())
    wrong: list[tuple[Any, str]] = [
        ({}, "expected a weight_map, got {}"),
        ({"a": "../model.safetensors"}, "names of files beside it, got '../model.safetensors'"),
        ({"a": "model-2.safetensors"}, "expected a safetensors file, got none"),
        (
            {str(index): f"model-{index}.safetensors" for index in (0, 1)},
            "in one file of the model alone",
        ),
    ]
    for weight_map, words in wrong:
        index_file.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(WorkloadError, match=words):
            SafetensorsModel(index_file)


# The tensors of a matrix of 64 x 96 in 4 bits, as the libraries write them, and their bytes.
QUANTIZED = {
    "GPTQ": (
        "qweight int32 12x64, qzeros int32 3x8, scales float16 3x64, g_idx int32 96",
        3072 + 96 + 384 + 384,
    ),
    "bitsandbytes": (
        "weight uint8 3072x1, weight.absmax uint8 96, weight.nested_absmax float 1, "
        "weight.quant_map float 16, weight.nested_quant_map float 256, "
        "weight.quant_state.bitsandbytes__nf4 uint8 80",
        3072 + 96 + 4 + 64 + 1024 + 80,
    ),
    "fp8": ("weight float8_e4m3fn 64x96, weight_scale_inv float 1x1", 6144 + 4),
    "compressed-tensors": (
        "weight_packed int32 64x12, weight_scale bfloat16 64x3, weight_shape int64 2",
        3072 + 384 + 16,
    ),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_scales_and_zeros_count_with_quantized_weights(kind: str, tmp_path: Path) -> None:
    layout, num_bytes = QUANTIZED[kind]
    tensors = plain_tensors(LLAMA)
    del tensors[f"{PROJECTION}.weight"]
    expected = {name: tensor.nbytes for name, tensor in tensors.items()}
    for name, dtype, sizes in map(str.split, layout.split(", ")):
        shape = [*map(int, sizes.split("x"))]
        tensors[f"{PROJECTION}.{name}"] = torch.zeros(shape, dtype=getattr(torch, dtype))
    path = write_safetensors(tmp_path, LLAMA, tensors)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": kind, "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bytes_in(path, LLAMA) == expected | {f"{PROJECTION}.weight": num_bytes}


def test_tensors_of_experts_count_together(tmp_path: Path) -> None:
    tensors = plain_tensors(MIXTRAL)
    expected = {name: tensor.nbytes for name, tensor in tensors.items()}
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        del tensors[f"{experts}.gate_up_proj"], tensors[f"{experts}.down_proj"]
        for expert in range(4):
            old = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            for name, shape in {"w1": (96, 64), "w2": (64, 96), "w3": (96, 64)}.items():
                tensors[f"{old}.{name}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
    assert bytes_in(write_safetensors(tmp_path, MIXTRAL, tensors), MIXTRAL) == expected
    del tensors["model.layers.0.block_sparse_moe.experts.3.w2.weight"]
    with pytest.raises(WorkloadError, match=r"mlp\.experts\.down_proj of the shape"):
        bytes_in(write_safetensors(tmp_path, MIXTRAL, tensors), MIXTRAL)


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"^(model|transformer)\.", ""),  # as base classes of the library are saved
        ("^", "model."),  # Lightning
        ("^", "module._orig_mod."),  # DataParallel around torch.compile
        (r"((layers|h)\.[0-9]+)\.", r"\1._fsdp_wrapped_module._checkpoint_wrapped_module."),
    ],
)
@pytest.mark.parametrize("config", [CONFIGS["qwen2"], GPT2], ids=["qwen2", "gpt2"])
def test_tied_weights_and_names_with_other_prefixes_are_found(
    config: dict[str, Any], old: str, new: str, tmp_path: Path
) -> None:
    tensors = {re.sub(old, new, name): tensor for name, tensor in plain_tensors(config).items()}
    expected = {name: 2 * prod(shape) for name, shape in shapes(tiny_model(config)).items()}
    assert not any("lm_head" in name for name in tensors)
    assert bytes_in(write_safetensors(tmp_path, config, tensors), config) == expected


def test_what_is_wrong_with_safetensors_files_is_said_in_a_line(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA)
    path = write_safetensors(tmp_path, LLAMA, tensors)
    whole = path.read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + length])
    weights = whole[8 + length :]

    def file(header: Any, length: int | None = None) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + weights

    norm = "model.norm.weight"
    for data in (
        file(header, 10**18),
        whole[: 8 + length // 2],
        whole.replace(b"layers.0.mlp.up_proj", b"layers.1.mlp.up_proj"),
        file(header | {norm: {**header[norm], "shape": [2**62, 4]}}),
        file(header | {norm: {**header[norm], "data_offsets": [0, 2**60]}}),
    ):
        path.write_bytes(data)
        match = rf"^{re.escape(str(path))}: expected a safetensors file, got [^\n]*$"
        with pytest.raises(WorkloadError, match=match):
            SafetensorsModel(path)
    for change, words in (
        ({norm: torch.zeros(32)}, "norm.weight of the shape 64, as config.json says, got 32"),
        ({norm: None}, "expected a tensor of model.norm.weight, got none$"),
        (
            {norm: None, "net.norm.weight": torch.zeros(64)},
            r"expected a tensor of model\.norm\.weight, got none, but net\.norm\.weight, which",
        ),
    ):
        changed = {
            name: tensor for name, tensor in (tensors | change).items() if tensor is not None
        }
        write_safetensors(tmp_path, LLAMA, changed)
        with pytest.raises(WorkloadError, match=words):
            bytes_in(path, LLAMA)
    with pytest.warns(UserWarning, match="1 tensors of 64 bytes .* such as other"):
        bytes_in(write_safetensors(tmp_path, LLAMA, tensors | {"other": torch.zeros(16)}), LLAMA)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WorkloadError, match=r"the config.json of the model beside it, got none"):
        SafetensorsModel(path)
    path.unlink()
    with pytest.raises(WorkloadError, match=r"expected model.safetensors.index.json or"):
        SafetensorsModel(tmp_path)
