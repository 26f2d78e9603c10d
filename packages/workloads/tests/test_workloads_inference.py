"""Steps of inference with models of transformers: caches as the library has them, and errors."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from placeto_workloads import WorkloadError, inference_step
from small_transformers import (
    CONTEXT,
    DECODER,
    SEQUENCES,
    SHARED_HEADS,
    SLIDING,
    SMALL,
    WINDOW,
    WITH_STATES,
    small_inference_step,
)

GPT2 = SMALL["gpt2"]  # 2 heads of width 8


def test_a_decode_step_says_the_next_word_as_the_whole_text_does() -> None:
    for name, settings in (("llama", SHARED_HEADS), ("gpt2", GPT2), ("mistral", SLIDING)):
        step = small_inference_step(
            name, "decode", settings, context=CONTEXT, device="cpu", dtype="float32"
        )
        torch.manual_seed(0)
        words = torch.randint(30, (SEQUENCES, CONTEXT))
        with torch.no_grad():
            expected = step.model(input_ids=words).logits[:, -1]
            cache_of_library = step.model(input_ids=words[:, :-1], use_cache=True).past_key_values
            cache = step.example_inputs["past_key_values"]
            for layer, library_layer in zip(cache.layers, cache_of_library.layers, strict=True):
                # The library keeps the last tokens of a window in their order.
                positions = (
                    torch.arange(CONTEXT - 1)[-library_layer.keys.shape[2] :] % layer.keys.shape[2]
                )
                layer.keys[:, :, positions] = library_layer.keys
                layer.values[:, :, positions] = library_layer.values
            inputs = {**step.example_inputs, "input_ids": words[:, -1:]}
            logits = step.model(**inputs).logits[:, -1]
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("name", WITH_STATES)
def test_a_decode_step_goes_on_from_the_state_of_the_library(name: str) -> None:
    step = small_inference_step(
        name, "decode", WITH_STATES[name], context=CONTEXT, device="cpu", dtype="float32"
    )
    torch.manual_seed(0)
    words = torch.randint(30, (SEQUENCES, CONTEXT))
    with torch.no_grad():
        expected = step.model(input_ids=words, use_cache=False).logits[:, -1]
        of_library = step.model(input_ids=words[:, :-1], use_cache=True).past_key_values
        num_states = 0
        for layer, library_layer in zip(
            step.example_inputs["past_key_values"].layers, of_library.layers, strict=True
        ):
            for kind in ("conv_states", "recurrent_states"):
                for index, state in getattr(library_layer, kind, {}).items():
                    if state is not None:
                        getattr(layer, kind)[index].copy_(state)
                        num_states += 1
            if getattr(library_layer, "keys", None) is not None:
                layer.keys[:, :, : CONTEXT - 1] = library_layer.keys
                layer.values[:, :, : CONTEXT - 1] = library_layer.values
        logits = step.model(**{**step.example_inputs, "input_ids": words[:, -1:]}).logits[:, -1]
    assert num_states
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*layers with a state loop over tokens")
@pytest.mark.parametrize("name", ["jamba", "lfm2"])
def test_a_prompt_begins_without_a_state(name: str) -> None:
    step = small_inference_step(
        name, "prefill", WITH_STATES[name], context=CONTEXT, device="cpu", dtype="float32"
    )
    words = step.example_inputs["input_ids"]
    with torch.no_grad():
        expected = step.model(input_ids=words, use_cache=False).logits[:, -1]
        logits = step.model(**step.example_inputs).logits[:, -1]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_one_token_loops_over_nothing() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        small_inference_step("qwen3_next", "decode", WITH_STATES["qwen3_next"], context=8)
    assert not any("loop over tokens" in str(warning.message) for warning in warned)
    with pytest.warns(UserWarning, match="loop over tokens"):
        small_inference_step("qwen3_next", "prefill", WITH_STATES["qwen3_next"], context=8)


@pytest.mark.filterwarnings("ignore:transformers.mistral. bytes or FLOPs are too high")
def test_a_prefill_step_says_the_next_word_and_fills_the_cache() -> None:
    for name, settings in (("llama", SHARED_HEADS), ("mistral", SLIDING)):
        step = small_inference_step(
            name, "prefill", settings, context=CONTEXT, device="cpu", dtype="float32"
        )
        words = step.example_inputs["input_ids"]
        assert words.shape == (SEQUENCES, CONTEXT)
        with torch.no_grad():
            logits = step.model(**step.example_inputs).logits
            whole = step.model(input_ids=words, use_cache=True)
        assert logits.shape[1] == 1
        torch.testing.assert_close(logits[:, -1], whole.logits[:, -1])
        layer, library_layer = (
            cache.layers[0]
            for cache in (step.example_inputs["past_key_values"], whole.past_key_values)
        )
        last = library_layer.keys[:, :, -1]
        torch.testing.assert_close(layer.keys[:, :, (CONTEXT - 1) % layer.keys.shape[2]], last)


RECURRENT = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 20}
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
        ("llama", {**DECODER, "cache_bits": 5}, r"^cache_bits: expected 4, 8 or 16, got 5$"),
        ("t5", SMALL["t5"], r"expected a decoder .*, got T5\w+, which has an enc"),
        ("rwkv", {**RECURRENT, "attention_hidden_size": 8}, "cache of earlier tokens, got Rwkv"),
        ("bert", SMALL["bert"], "BertLMHeadModel, .* an encoder; the setting is_decoder=true"),
        (
            "llama",
            {**SHARED_HEADS, "rope_parameters": ROPE},
            "no values, got rope_type dynamic; the sett",
        ),
    ],
)
def test_a_step_that_there_is_not_is_refused_in_one_line(
    name: str, settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        inference_step(f"transformers:{name}", **{"mode": "decode", **settings})


DENSE = {
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 8,
    "mamba_n_heads": 4,
    "layer_types": ["attention"] * 2,
}


@pytest.mark.parametrize(
    ("name", "settings", "experts"),
    [
        ("llama", {}, 1),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, 2),
        ("granitemoehybrid", DENSE, 1),
    ],
)
def test_each_token_goes_to_as_many_experts_as_the_configuration_says(
    name: str, settings: Mapping[str, Any], experts: int
) -> None:
    step = small_inference_step(name, "decode", {**DECODER, **settings}, context=CONTEXT)
    assert step.experts_per_token == experts


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
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        small_inference_step(name, mode, {**SHARED_HEADS, **settings}, context=8)
    assert len(warned) == bool(work)
    assert all(
        work in str(warning.message) and "\n" not in str(warning.message) for warning in warned
    )


@pytest.mark.filterwarnings("ignore:.*too high for a server")
def test_fewer_layers_than_a_configuration_lists(tmp_path: Path) -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    file = tmp_path / "config.json"
    text = {**SHARED_HEADS, "head_dim": 4, **layers}
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
