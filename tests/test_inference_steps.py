"""Steps of inference with models of transformers: caches, widths of weights, experts, and time."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placeto import capture_step
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, Efficiency, OpGraph
from placeto_workloads import TrainingStep, WorkloadError, inference_step
from small_transformers import DECODER, SMALL

CONTEXT, SEQUENCES = 24, 3
WINDOW = 8
HEADS = {**DECODER, "num_attention_heads": 4, "num_key_value_heads": 2}  # of width 4
GPT2 = SMALL["gpt2"]  # 2 heads of width 8
SLIDING = {**HEADS, "sliding_window": WINDOW}
BYTES = 2  # of a number in bfloat16


def step_of(name: str, mode: str, settings: Mapping[str, Any], **how: Any) -> TrainingStep:
    return inference_step(
        f"transformers:{name}", mode=mode, batch_size=SEQUENCES, **how, **settings
    )


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
        ("llama", HEADS, 2, 4, CONTEXT),
        ("gpt2", GPT2, 2, 8, CONTEXT),
        ("mixtral", SMALL["mixtral"], 1, 8, CONTEXT),
        ("mistral", SLIDING, 2, 4, WINDOW),
    ],
)
def test_a_cache_has_the_keys_and_values_of_each_layer(
    mode: str, name: str, settings: Mapping[str, Any], num_heads: int, width: int, length: int
) -> None:
    graph = capture_step(step_of(name, mode, settings, context=CONTEXT))
    found = caches(graph)
    num_layers = 2
    of_one = SEQUENCES * num_heads * length * width * BYTES
    assert graph.parameter_bytes[found].tolist() == [of_one] * (2 * num_layers)
    num_new = 1 if mode == "decode" else length
    for cache in found:
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


def attentions(graph: OpGraph) -> list[int]:
    return [op for op, kind in enumerate(graph.op_types) if "dot_product" in kind]


def test_attention_reads_the_cache_of_its_layer_and_is_with_it() -> None:
    graph = capture_step(step_of("llama", "decode", HEADS, context=CONTEXT))
    of_one = SEQUENCES * 2 * CONTEXT * 4 * BYTES
    token = SEQUENCES * 4 * 4 * BYTES  # of 4 heads, of which 2 share keys and values
    sums = SEQUENCES * 4 * 4
    found = attentions(graph)
    assert len(found) == 2
    for attention in found:
        assert graph.bytes_accessed[attention] == 2 * of_one + 2 * token + sums
        together = graph.colocation == graph.colocation[attention]
        assert sum(together[caches(graph)]) == 2
        assert len({graph.scopes[op] for op in np.flatnonzero(together)}) == 1


def test_a_decode_step_says_the_next_word_as_the_whole_text_does() -> None:
    for name, settings in (("llama", HEADS), ("gpt2", GPT2), ("mistral", SLIDING)):
        step = step_of(name, "decode", settings, context=CONTEXT, device="cpu", dtype="float32")
        torch.manual_seed(0)
        words = torch.randint(30, (SEQUENCES, CONTEXT))
        with torch.no_grad():
            expected = step.model(input_ids=words).logits[:, -1]
            before = step.model(input_ids=words[:, :-1], use_cache=True).past_key_values
            cache = step.example_inputs["past_key_values"]
            for layer, kept in zip(cache.layers, before.layers, strict=True):
                # The library keeps the last tokens of a window in their order.
                places = torch.arange(CONTEXT - 1)[-kept.keys.shape[2] :] % layer.keys.shape[2]
                layer.keys[:, :, places] = kept.keys
                layer.values[:, :, places] = kept.values
            inputs = {**step.example_inputs, "input_ids": words[:, -1:]}
            found = step.model(**inputs).logits[:, -1]
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:transformers.mistral. bytes or FLOPs are too high")
def test_a_prefill_step_says_the_next_word_and_fills_the_cache() -> None:
    for name, settings in (("llama", HEADS), ("mistral", SLIDING)):
        step = step_of(name, "prefill", settings, context=CONTEXT, device="cpu", dtype="float32")
        words = step.example_inputs["input_ids"]
        assert words.shape == (SEQUENCES, CONTEXT)
        with torch.no_grad():
            found = step.model(**step.example_inputs).logits
            whole = step.model(input_ids=words, use_cache=True)
        assert found.shape[1] == 1
        torch.testing.assert_close(found[:, -1], whole.logits[:, -1])
        layer, kept = (
            cache.layers[0]
            for cache in (step.example_inputs["past_key_values"], whole.past_key_values)
        )
        last = kept.keys[:, :, -1]
        torch.testing.assert_close(layer.keys[:, :, (CONTEXT - 1) % layer.keys.shape[2]], last)


def test_weights_have_the_dtype_of_the_configuration_or_bfloat16() -> None:
    graph = capture_step(step_of("llama", "decode", HEADS, context=8))
    assert {graph.dtype[op] for op in caches(graph)} == {"bfloat16"}
    graph = capture_step(step_of("llama", "decode", HEADS, context=8, dtype="float16"))
    products = [op for op, kind in enumerate(graph.op_types) if kind == "aten.mm"]
    assert {graph.dtype[op] for op in products} == {"float16"}


@pytest.mark.parametrize(
    ("bits", "bytes_of_block"), [(4, 16 + 2), (8, 32 + 2), (16, 64), (None, 64)]
)
def test_linear_layers_are_held_in_blocks_of_32_with_a_scale(
    bits: int | None, bytes_of_block: int
) -> None:
    settings = {**HEADS, "hidden_size": 32, "intermediate_size": 64}
    step = step_of("llama", "decode", settings, context=8, weight_bits=bits)
    graph = capture_step(step)
    # Queries and outputs are 32 x 32, keys and values 16 x 32, and of the 3 others 64 x 32.
    blocks = 2 * (2 * 32 + 2 * 16 + 3 * 64)
    others = (2 * 30 * 32 + (2 * 2 + 1) * 32) * BYTES  # words, logits and norms
    is_weight = np.array([kind == "parameter" for kind in graph.op_types])
    assert graph.parameter_bytes[is_weight].sum() == blocks * bytes_of_block + others
    query = graph.op_names.index("model.layers.0.self_attn.q_proj/aten.mm")
    assert graph.bytes_accessed[query] == 32 * bytes_of_block + 2 * SEQUENCES * 32 * BYTES
    assert graph.flops[query] == 2 * SEQUENCES * 32 * 32
    assert graph.dtype[query] == "bfloat16"


@pytest.mark.parametrize(("mode", "num_tokens"), [("decode", 3), ("prefill", 72)])
def test_a_token_touches_few_experts_and_a_prompt_all(mode: str, num_tokens: int) -> None:
    settings = {**SMALL["mixtral"], "num_local_experts": 8, "num_experts_per_tok": 2}
    step = step_of("mixtral", mode, settings, context=CONTEXT, weight_bits=4)
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
    logits = 4000 * 2048 * 2
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
    assert cost_model(graph, kind).sum() == pytest.approx(seconds, rel=0.01)
    # Of the table of words a row is read, but all of it is held.
    held = weights + 2 * logits + keys_and_values
    assert graph.parameter_bytes.sum() == pytest.approx(held, rel=0.01)


ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            *("llama", {**DECODER, "max_position_embeddings": 16, "context": 17}),
            "^context: expected at most 16 tokens, as max_position_embeddings of .* is 16, got 17",
        ),
        ("mpt", {"n_layers": 1, "max_seq_len": 16, "context": 17}, "at most 16 .* max_seq_len of"),
        ("llama", {**DECODER, "weight_bits": 3}, r"^weight_bits: expected 4, 8 or 16, got 3$"),
        ("t5", SMALL["t5"], r"expected a decoder .*, got T5\w+, which has an enc"),
        ("recurrent_gemma", DECODER, "keys and values, got a LinearAttentionLayer in layer"),
        ("bert", SMALL["bert"], "BertLMHeadModel, .* an encoder; the setting is_decoder=true"),
        ("llama", {**HEADS, "rope_parameters": ROPE}, "no values, got rope_type dynamic; the sett"),
    ],
)
def test_a_step_that_there_is_not_is_refused_in_one_line(
    name: str, settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        inference_step(f"transformers:{name}", **{"mode": "decode", **settings})


@pytest.mark.parametrize(
    ("name", "settings", "mode", "work"),
    [
        ("gemma2", {"head_dim": 4}, "decode", "copies keys and values for each head"),
        ("llama4_text", {"head_dim": 4, "num_local_experts": 4}, "decode", "computes all experts"),
        ("llama", {}, "prefill", ""),
        ("mistral", {"sliding_window": 4}, "decode", ""),
        ("mistral", {"sliding_window": 8}, "prefill", ""),
        ("mistral", {"sliding_window": 4}, "prefill", "library computes all pairs of tokens"),
    ],
)
def test_counts_that_are_too_high_are_told(
    name: str, settings: Mapping[str, Any], mode: str, work: str
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step_of(name, mode, {**HEADS, **settings}, context=8)
    assert len(told) == bool(work)
    assert all(work in str(each.message) and "\n" not in str(each.message) for each in told)


@pytest.mark.filterwarnings("ignore:.*too high for a server")
def test_fewer_layers_than_a_configuration_lists(tmp_path: Path) -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    file = tmp_path / "config.json"
    text = {**HEADS, "head_dim": 4, **layers}
    file.write_text(json.dumps({"model_type": "gpt_oss", **text}))
    step = inference_step(f"transformers:{file}", mode="decode", context=16, num_hidden_layers=1)
    (layer,) = step.example_inputs["past_key_values"].layers
    assert layer.max_cache_len == WINDOW
    with pytest.raises(WorkloadError, match=r"takes, got ValueError: `num_hidden_layers` \(3\)"):
        inference_step(f"transformers:{file}", mode="decode", num_hidden_layers=3)
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    fewer: dict[str, Any] = {"text_config": {"num_hidden_layers": 1}}
    step = inference_step(f"transformers:{file}", mode="decode", context=16, **fewer)
    assert len(step.example_inputs["past_key_values"].layers) == 1
