"""Steps of inference with models of transformers: caches, widths of weights, experts, and time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from placeto import capture_step
from placeto_capture import cost_model, fused
from placeto_graphs import DEVICE_KINDS, Efficiency, OpGraph, TokenCache
from placeto_workloads import inference_step
from small_transformers import (
    CONTEXT,
    SEQUENCES,
    SHARED_HEADS,
    SLIDING,
    SMALL,
    WINDOW,
    WITH_STATES,
    small_inference_step,
)

GPT2 = SMALL["gpt2"]  # 2 heads of width 8
BYTES = 2  # of a number in bfloat16


def caches(graph: OpGraph) -> list[int]:
    return [
        op
        for op, (kind, name) in enumerate(zip(graph.op_types, graph.op_names, strict=True))
        if kind == "buffer" and name.startswith("input.")
    ]


@pytest.mark.filterwarnings("ignore:transformers.mistral. bytes or FLOPs are too high")
@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("name", "settings", "num_heads", "width", "length"),
    [
        ("llama", SHARED_HEADS, 2, 4, CONTEXT),
        ("gpt2", GPT2, 2, 8, CONTEXT),
        ("mixtral", SMALL["mixtral"], 1, 8, CONTEXT),
        ("mistral", SLIDING, 2, 4, WINDOW),
    ],
)
def test_a_cache_has_the_keys_and_values_of_each_layer(
    mode: str, name: str, settings: Mapping[str, Any], num_heads: int, width: int, length: int
) -> None:
    graph = capture_step(small_inference_step(name, mode, settings, context=CONTEXT))
    cache_ops = caches(graph)
    num_layers = 2
    of_one = SEQUENCES * num_heads * length * width * BYTES
    assert graph.parameter_bytes[cache_ops].tolist() == [of_one] * (2 * num_layers)
    num_new = 1 if mode == "decode" else length
    for cache in cache_ops:
        (tensor,) = graph.tensors_of_op[cache]
        (write,) = [
            op
            for op in graph.consumers_of_tensor[tensor]
            if graph.op_types[op] == "aten.index_copy_"
        ]
        assert graph.scopes[cache] == graph.scopes[write]
        assert graph.colocation[cache] == graph.colocation[write] >= 0
        # It reads the new tokens, and their places, and writes them.
        moved = 2 * SEQUENCES * num_heads * num_new * width * BYTES + 8 * num_new
        assert graph.bytes_accessed[write] == moved


@pytest.mark.filterwarnings("ignore:.*layers with a state loop over tokens")
@pytest.mark.parametrize("name", WITH_STATES)
def test_a_state_has_the_bytes_of_the_tensors_that_the_library_keeps(name: str) -> None:
    settings = WITH_STATES[name]
    step = small_inference_step(name, "decode", settings, context=CONTEXT, device="cpu")
    words = torch.zeros(SEQUENCES, CONTEXT, dtype=torch.int64)
    with torch.no_grad():
        layers = step.model(input_ids=words, use_cache=True).past_key_values.layers
    states = [
        tensor
        for layer in layers
        for kind in ("conv_states", "recurrent_states")
        for tensor in getattr(layer, kind, {}).values()
        if tensor is not None
    ]
    keys = [layer.keys for layer in layers if getattr(layer, "keys", None) is not None]
    expected = [tensor.nbytes for tensor in (*states, *keys, *keys)]
    for mode in ("decode", "prefill"):
        graph = capture_step(small_inference_step(name, mode, settings, context=CONTEXT))
        assert sorted(graph.parameter_bytes[caches(graph)]) == sorted(expected)
    assert len(states) >= 1


@pytest.mark.parametrize(("bits", "bytes_of_block"), [(4, 18), (8, 34), (16, 64), (None, 64)])
def test_keys_and_values_are_held_in_blocks_of_32_with_a_scale(
    bits: int | None, bytes_of_block: int
) -> None:
    settings = {**SHARED_HEADS, "head_dim": 32}
    step = small_inference_step("llama", "decode", settings, context=CONTEXT, cache_bits=bits)
    graph = capture_step(step)
    of_one = SEQUENCES * 2 * CONTEXT * bytes_of_block
    assert graph.parameter_bytes[caches(graph)].tolist() == [of_one] * 4
    token = SEQUENCES * 4 * 32 * BYTES
    (attention, *_) = attentions(graph)
    sums = SEQUENCES * 4 * 4
    assert graph.bytes_accessed[attention] == 2 * of_one + 2 * token + sums
    write = graph.op_types.index("aten.index_copy_")
    new = SEQUENCES * 2
    assert graph.bytes_accessed[write] == new * 32 * BYTES + 8 + new * bytes_of_block
    assert graph.cache == TokenCache(context=CONTEXT, sequences=SEQUENCES, bits=bits or 16)


def test_a_step_of_a_server_launches_fifteen_kernels_per_layer() -> None:
    """Seven products and attention; norms, rotations, writes of keys and values, and sums.

    The rotated keys are written in one kernel, and the first sum of a layer is that of its norm.
    """
    graph = fused(capture_step(small_inference_step("llama", "decode", SHARED_HEADS, context=8)))
    resident = ("parameter", "buffer", "input")
    kernels = [
        scope
        for scope, kind in zip(graph.scopes, graph.op_types, strict=True)
        if kind not in resident and scope.startswith("model.layers.1")
    ]
    assert len(kernels) == 15
    assert len(attentions(graph)) == 2


def attentions(graph: OpGraph) -> list[int]:
    return [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]


def test_attention_reads_the_cache_of_its_layer_and_is_with_it() -> None:
    graph = capture_step(small_inference_step("llama", "decode", SHARED_HEADS, context=CONTEXT))
    of_one = SEQUENCES * 2 * CONTEXT * 4 * BYTES
    token = SEQUENCES * 4 * 4 * BYTES  # of 4 heads, of which 2 share keys and values
    sums = SEQUENCES * 4 * 4
    attention_ops = attentions(graph)
    assert len(attention_ops) == 2
    for attention in attention_ops:
        assert graph.bytes_accessed[attention] == 2 * of_one + 2 * token + sums
        together = graph.colocation == graph.colocation[attention]
        assert sum(together[caches(graph)]) == 2
        assert len({graph.scopes[op] for op in np.flatnonzero(together)}) == 1


def test_weights_have_the_dtype_of_the_configuration_or_bfloat16() -> None:
    graph = capture_step(small_inference_step("llama", "decode", SHARED_HEADS, context=8))
    assert {graph.dtype[op] for op in caches(graph)} == {"bfloat16"}
    graph = capture_step(
        small_inference_step("llama", "decode", SHARED_HEADS, context=8, dtype="float16")
    )
    products = [op for op, kind in enumerate(graph.op_types) if kind == "aten.mm"]
    assert {graph.dtype[op] for op in products} == {"float16"}


@pytest.mark.parametrize(
    ("bits", "bytes_of_block"), [(4, 16 + 2), (8, 32 + 2), (16, 64), (None, 64)]
)
def test_linear_layers_are_held_in_blocks_of_32_with_a_scale(
    bits: int | None, bytes_of_block: int
) -> None:
    settings = {**SHARED_HEADS, "hidden_size": 32, "intermediate_size": 64}
    step = small_inference_step("llama", "decode", settings, context=8, weight_bits=bits)
    graph = capture_step(step)
    # Queries and outputs are 32 x 32, keys and values 16 x 32, and of the 3 others 64 x 32.
    blocks = 2 * (2 * 32 + 2 * 16 + 3 * 64)
    norms = (2 * 2 + 1) * 32 * BYTES
    words = 30 * bytes_of_block
    logits = 30 * (34 if bits == 4 else bytes_of_block)  # rows are no blocks of 256
    other_bytes = words + logits + norms
    is_weight = np.array([kind == "parameter" for kind in graph.op_types])
    assert graph.parameter_bytes[is_weight].sum() == blocks * bytes_of_block + other_bytes
    query = graph.op_names.index("model.layers.0.self_attn.q_proj/aten.mm")
    assert graph.bytes_accessed[query] == 32 * bytes_of_block + 2 * SEQUENCES * 32 * BYTES
    assert graph.flops[query] == 2 * SEQUENCES * 32 * 32
    assert graph.dtype[query] == "bfloat16"


@pytest.mark.parametrize(("mode", "num_tokens"), [("decode", 3), ("prefill", 72)])
def test_a_token_touches_few_experts_and_a_prompt_all(mode: str, num_tokens: int) -> None:
    settings = {**SMALL["mixtral"], "num_local_experts": 8, "num_experts_per_tok": 2}
    step = small_inference_step("mixtral", mode, settings, context=CONTEXT, weight_bits=4)
    graph = capture_step(step)
    touched = 8 * (1 - (1 - 2 / 8) ** num_tokens)
    of_gates, of_down = 48 * 18, 16 * 18  # of one expert: 48 rows of 16, and 16 rows of 24
    rows = 2 * num_tokens
    gates, down, *_ = (op for op, kind in enumerate(graph.op_types) if kind == "aten._grouped_mm")
    moved = rows * (16 + 48) * BYTES + 8 * 4
    assert graph.bytes_accessed[gates] == round(touched * of_gates + moved)
    assert graph.bytes_accessed[down] == round(touched * of_down + rows * (24 + 16) * BYTES + 8 * 4)
    assert graph.flops[gates] == 2 * rows * 16 * 48
    # They may be elsewhere than the attention of their layer.
    experts = [op for op, name in enumerate(graph.op_names) if ".experts." in name]
    tied = {graph.colocation[op] for op in (*attentions(graph), *caches(graph))}
    assert tied.isdisjoint(graph.colocation[experts])


def test_tokens_per_second_are_bandwidth_over_bytes() -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 4000}
    settings: dict[str, Any] = {**sizes, **heads, "max_position_embeddings": 4096}
    step = inference_step(
        "transformers:llama", mode="decode", context=4096, weight_bits=4, **settings
    )
    graph = capture_step(step)
    weights = 2 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192) * 18 // 32
    words, logits = 4000 * 2048 * 18 // 32, 4000 * 2048 * 210 // 256
    keys_and_values = 2 * 2 * 4 * 4096 * 128 * 2
    kind = replace(
        DEVICE_KINDS["a100"],
        peak_flops=1e18,
        peak_flops_in={},
        memory_bandwidth=1e12,
        launch_overhead=0.0,
        efficiency=Efficiency(**dict.fromkeys(Efficiency.__dataclass_fields__, 0.5)),
    )
    seconds = (weights + logits + keys_and_values) / (0.5 * 1e12)
    assert cost_model(graph, kind).sum() == pytest.approx(seconds, rel=0.02)
    # Of the table of words a row is read, but all of it is held.
    held_bytes = weights + words + logits + keys_and_values
    assert graph.parameter_bytes.sum() == pytest.approx(held_bytes, rel=0.01)
