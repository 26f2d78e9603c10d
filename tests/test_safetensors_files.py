"""Models in safetensors files: bytes of parameters, quantized or not, and damaged files."""

import json
import random
import re
import struct
import warnings
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from weight_files import CONFIGS, MIXTRAL, decoding_step, shapes, tiny_model, write_safetensors

from placeto_workloads import WorkloadError
from placeto_workloads.libraries.weight_files import SafetensorsModel


def plain_tensors(config: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return {
        name: torch.zeros(shape, dtype=dtype) for name, shape in shapes(tiny_model(config)).items()
    }


def bytes_in(path: Path, config: dict[str, Any]) -> dict[str, int]:
    step = decoding_step(path)
    assert shapes(step.model) == shapes(tiny_model(config))
    return dict(step.parameter_bytes or {})


LLAMA = CONFIGS["llama"]
PROJECTION = "model.layers.1.mlp.down_proj"  # 64 x 96


def test_safetensors_files_have_the_bytes_of_parameters(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, LLAMA, plain_tensors(LLAMA))
    expected = {name: 2 * prod(shape) for name, shape in shapes(tiny_model(LLAMA)).items()}
    assert bytes_in(path, LLAMA) == expected
    assert bytes_in(tmp_path, LLAMA) == expected  # the folder


def test_a_model_may_be_in_several_safetensors_files(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA)
    write_safetensors(tmp_path, LLAMA, {}).unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file(
            {name: tensors[name] for name in tensors if places[name] == file}, tmp_path / file
        )
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    expected = {name: tensor.nbytes for name, tensor in tensors.items()}
    assert bytes_in(index, LLAMA) == bytes_in(tmp_path, LLAMA) == expected
    (tmp_path / "model-1.safetensors").write_bytes((tmp_path / "model-0.safetensors").read_bytes())
    wrong: list[tuple[Any, str]] = [
        ({}, "expected a weight_map, got {}"),
        ({"a": "../model.safetensors"}, "names of files beside it, got '../model.safetensors'"),
        ({"a": "model-2.safetensors"}, "expected a safetensors file, got none"),
        ({str(n): f"model-{n}.safetensors" for n in (0, 1)}, "in one file of the model alone"),
    ]
    for weight_map, words in wrong:
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(WorkloadError, match=words):
            SafetensorsModel(index)


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
    parts, num_bytes = QUANTIZED[kind]
    tensors = plain_tensors(LLAMA)
    del tensors[f"{PROJECTION}.weight"]
    expected = {name: tensor.nbytes for name, tensor in tensors.items()}
    for name, dtype, sizes in map(str.split, parts.split(", ")):
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
        changed = {name: each for name, each in (tensors | change).items() if each is not None}
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


def test_no_damage_of_a_safetensors_file_raises_anything_else(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, LLAMA, plain_tensors(LLAMA))
    whole = path.read_bytes()
    end = 8 + struct.unpack_from("<Q", whole)[0]
    numbers = random.Random(0)  # noqa: S311 (it keeps no secret)
    model = tiny_model(LLAMA)
    refused = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(numbers.choice([1, 1, 2, 8])):
            place = numbers.randrange(end)
            data[place] = numbers.choice([0, 255, 0x39, data[place] ^ 1 << numbers.randrange(8)])
        path.write_bytes(data)
        try:
            with warnings.catch_warnings(action="ignore"):
                SafetensorsModel(path).parameter_bytes(model)
        except WorkloadError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 250
