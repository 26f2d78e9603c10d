"""Models in GGUF files: configurations, bytes of parameters, and damaged files."""

import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from weight_files import CONFIGS, MIXTRAL, decoding_step, shapes, tiny_model, write_gguf

from placeto.problems.options import SourceOptions
from placeto.problems.sources import load_source
from placeto_workloads import WorkloadError
from placeto_workloads.libraries.gguf_files import GgufModel, read_gguf
from placeto_workloads.libraries.weight_files import StoredTensor

pytestmark = pytest.mark.filterwarnings("ignore:.*too high for a server")


@pytest.mark.parametrize(
    ("architecture", "config"),
    [*CONFIGS.items(), ("llama", MIXTRAL)],
    ids=lambda each: str(each)[:9],
)
def test_a_gguf_file_has_the_model_that_it_was_written_of(
    architecture: str, config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    written = write_gguf(path, architecture, config)
    step = decoding_step(path)
    assert shapes(step.model) == shapes(tiny_model(config))
    assert step.parameter_bytes == written


@pytest.mark.parametrize("config", [CONFIGS["llama"], MIXTRAL], ids=["llama", "mixtral"])
def test_a_step_of_decoding_reads_the_bytes_of_the_file(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    written = write_gguf(path, "llama", config)
    source = load_source(str(path), SourceOptions(mode="decode", context=200))
    assert source.name == "small-decode"
    graph = source.graph
    held = dict(zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True))
    assert {name: held[name] for name in written} == written
    # Keys and values of 2 layers, 2 heads, 200 tokens of 64 / 4 numbers of 16 bits.
    caches = [count for name, count in held.items() if count and "past_key_values" in name]
    assert caches == [2 * 200 * 16 * 2] * 4
    read = dict(zip(graph.op_names, graph.bytes_accessed.tolist(), strict=True))
    weight = written["model.layers.1.self_attn.q_proj.weight"]
    # A product reads and writes vectors of 64 numbers of 16 bits, too.
    assert read["model.layers.1.self_attn.q_proj/aten.mm"] == weight + 2 * 64 * 2
    with pytest.raises(WorkloadError, match="context: expected at most 256 tokens"):
        load_source(str(path), SourceOptions(mode="decode", context=257))
    with pytest.raises(WorkloadError, match=r"weight_bits: expected none for .*small\.gguf, whose"):
        load_source(str(path), SourceOptions(mode="decode", weight_bits=4))
    with pytest.warns(UserWarning, match="a training step counts weights in the dtype"):
        load_source(str(path), SourceOptions({"batch_size": 1, "sequence_length": 4}))


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
    # Files of the first months have a tensor for each expert.
    model = GgufModel(path)
    model.tensors = {
        name.replace("_exps", f".{expert}"): StoredTensor(shape[1:], num_bytes // 4)
        for name, (shape, num_bytes) in header.tensors.items()
        for expert in range(4)
        if expert == 0 or "_exps" in name
    } | {name: each for name, each in header.tensors.items() if "_exps" not in name}
    assert model.parameter_bytes(tiny_model(MIXTRAL)) == step.parameter_bytes


def test_headers_of_large_files_alone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word{number}" for number in range(20_000)])
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
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    expected = write_gguf(whole, "qwen2", config)
    for number, part in enumerate(parts):
        write_gguf(part, "qwen2", config, number, 2)
    for part in parts:
        found = GgufModel(part)
        assert found.config == GgufModel(whole).config
        assert found.parameter_bytes(tiny_model(config)) == expected
    renamed = tmp_path / "model.gguf"
    renamed.write_bytes(parts[0].read_bytes())
    with pytest.raises(WorkloadError, match="so that the other parts are found beside it"):
        GgufModel(renamed)
    parts[1].unlink()
    with pytest.raises(WorkloadError, match=r"00002-of-00002\.gguf: No such file"):
        GgufModel(parts[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small file of llama."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, "llama", CONFIGS["llama"])
    return path.read_bytes()


NORM, QUERY = b"blk.0.attn_norm.weight", b"blk.0.attn_q.weight"
WIDTH, HEADS = b"llama.embedding_length", b"llama.attention.head_count_kv"
# Bytes, others in their place or behind them, and words of what is said of it.
BAD_BYTES: dict[str, tuple[bytes, bytes, str]] = {
    "big-endian": (b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", "got a big-endian one"),
    "magic": (b"GGUF", b"GGML", "begins with b'GGML'"),
    "tensor twice": (QUERY, b"blk.1.attn_q.weight", "blk.1.attn_q.weight once, got it twice"),
    "no UTF-8": (QUERY, b"blk.0.attn_\xff.weight", "in UTF-8"),
    "architecture": (b"\0llama", b"\0lamma", "such as llama, gemma, got 'lamma'"),
    "no such tensor": (QUERY, b"blk.0.attn_z.weight", "got none, but blk.0.attn_z.weight, which"),
    "no embedding": (b"token_embd", b"token_abcd", "expected a tensor token_embd.weight"),
    "width": (
        *(WIDTH + struct.pack("<II", 4, 64), WIDTH + struct.pack("<II", 4, 128)),
        "of the shape 128 x 128, as its metadata says, got 128 x 64",
    ),
    "heads of keys": (
        *(HEADS + struct.pack("<II", 4, 2), HEADS + struct.pack("<II", 4, 2**24)),
        "at most the num_attention_heads 4",
    ),
    "offset": (
        *(NORM + struct.pack("<IQI", 1, 64, 0), NORM + struct.pack("<IQI", 1, 2**62, 0)),
        "within the",
    ),
}


@pytest.mark.parametrize("name", [*BAD_BYTES, "empty", "cut header", "cut weights"])
def test_what_is_wrong_with_a_gguf_file_is_said_in_a_line(
    name: str, written: bytes, tmp_path: Path
) -> None:
    if name in BAD_BYTES:
        before, after, words = BAD_BYTES[name]
        assert before in written
        data = written.replace(before, after)
    else:
        data, words = {
            "empty": (b"", "expected a GGUF file, got one of 0 bytes"),
            "cut header": (written[:200], "expected a header that ends before byte 200"),
            "cut weights": (written[:-40], "the file is damaged, or cut off"),
        }[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(WorkloadError) as caught:
        decoding_step(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_damage_of_a_gguf_file_raises_anything_else(written: bytes, tmp_path: Path) -> None:
    numbers = random.Random(0)  # noqa: S311 (it keeps no secret)
    header = written[: written.index(b"output.weight") + 40]
    path = tmp_path / "model.gguf"
    refused = 0
    tracemalloc.start()
    for _ in range(3000):
        data = bytearray(written)
        for _ in range(numbers.choice([1, 1, 2, 8])):
            place = numbers.randrange(len(header))
            data[place] = numbers.choice([0, 255, data[place] ^ 1 << numbers.randrange(8)])
        if numbers.random() < 0.1:
            del data[numbers.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            GgufModel(path)
        except WorkloadError:
            refused += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 300 < refused < 3000
    assert peak < 5 * 10**6
