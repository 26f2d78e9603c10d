"""Inference with language models of the transformers library: one step with a cache of tokens.

A decode step reads the last token of each sequence, and the cache of those before it. A prefill
step reads a whole prompt and fills the cache. Begin to read at `inference_step`.
"""

import importlib
import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from placeto_graphs import error_line
from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import offline
from placeto_workloads.libraries.transformers import build_model, stored_model
from placeto_workloads.libraries.transformers_inputs import checked_length
from placeto_workloads.models.training_step import TrainingStep, seeded, whole_number

INFERENCE_MODES = ("prefill", "decode")
DEFAULT_CONTEXT = 2048  # tokens, or as many as the configuration allows
DEFAULT_DTYPE = torch.bfloat16  # where the configuration says none
WEIGHT_BITS = (4, 8, 16)
# Quantized weights are held as GGUF's Q4_0 and Q8_0 are (ggml's `block_q4_0` and `block_q8_0`): a
# row in blocks of 32 weights with a scale of 16 bits, which makes 4.5 and 8.5 bits per weight.
WEIGHTS_PER_SCALE = 32
BITS_OF_SCALE = 16
# What models call their argument for a cache, from version 5.24 of transformers on and before.
CACHES = ("cache", "past_key_values")
# What configurations call the number of experts that each token goes to.
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
# Work in steps of the library that a server does without, by the model_type of the text.
_COPIES = "copies keys and values for each head"
EXTRA_WORK = {
    "deepseek_v2": "expands the cache of all tokens",
    "deepseek_v3": "expands the cache of all tokens",
    "falcon": _COPIES,
    "llama4_text": "computes all experts for each token",
}


def inference_step(
    source: str,
    *,
    mode: str,
    context: int | None = None,
    batch_size: int = 1,
    weight_bits: int | None = None,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a step of inference with a language model of the transformers library.

    Nothing is downloaded: the model is made of its configuration. Its weights have the dtype of
    the configuration, bfloat16 if that says none. The keys and values of each layer are in a static
    cache: a tensor of ``context`` tokens each, or of those of a sliding window. A warning says if
    the step of the library does work that a server does without.

    Parameters
    ----------
    source
        Text ``"transformers:"`` and a ``model_type``, the path of a ``config.json``, or that of
        files of weights, as of `transformers_step`. Weights are read in their bytes of the files.
    mode
        Kind of step. ``"decode"``: the last token that the context has room for, one of each
        sequence, with all tokens before it in the cache. ``"prefill"``: a prompt that fills the
        context.
    context
        Number of tokens of each sequence that the cache has room for; by default 2,048, or as many
        as the configuration allows.
    batch_size
        Number of sequences in a step.
    weight_bits
        Number of bits of each weight of linear layers and experts: 16, 8 or 4. With 8 and 4, blocks
        of 32 weights have a scale of 16 bits each. Embeddings, norms, routers and the output layer
        keep their dtype, and all is computed with it. By default all weights have their dtype.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Settings of the configuration, of any type of JSON.

    Raises
    ------
    WorkloadError
        When there is no such model or setting, it keeps no keys and values of earlier tokens, or
        the context is longer than the configuration allows.
    """
    library, _, name = source.partition(":")
    if library != "transformers":
        raise WorkloadError(f"mode: expected a model of transformers for {mode}, got {source}")
    if mode not in INFERENCE_MODES:
        raise WorkloadError(f"mode: expected one of {', '.join(INFERENCE_MODES)}, got {mode!r}")
    if weight_bits is not None and weight_bits not in WEIGHT_BITS:
        raise WorkloadError(f"weight_bits: expected 4, 8 or 16, got {weight_bits}")
    whole_number("batch_size", batch_size)
    stored = stored_model(name)
    if stored is not None and weight_bits is not None:
        raise WorkloadError(
            f"weight_bits: expected none for {name}, whose weights are as its file has them, got "
            f"{weight_bits}"
        )
    model: Any = build_model(
        name,
        settings,
        None,
        stored,
        device=device,
        seed=seed,
        usual_task="causal-lm",
        usual_dtype=DEFAULT_DTYPE,
    ).eval()
    key = _cache_argument(name, model)
    parameter_bytes = stored.parameter_bytes(model) if stored else None
    if weight_bits is not None:
        parameter_bytes = dict(_held_bytes(model, weight_bits))
    length = checked_length(name, model, "context", context, DEFAULT_CONTEXT)
    num_new = 1 if mode == "decode" else length
    with seeded(seed):
        vocabulary = model.config.get_text_config().vocab_size
        words = torch.randint(vocabulary, (batch_size, num_new)).to(device)
    cache = _cache(name, model, key, words, length)
    inputs = {"input_ids": words, key: cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    text = model.config.get_text_config()
    shortest = min(layer.max_cache_len for layer in cache.layers)
    _warn_of_extra_work(name, text, has_windows=shortest < num_new)
    experts = [getattr(text, key, None) for key in EXPERTS_PER_TOKEN]
    return TrainingStep(
        model,
        inputs,
        mode="inference",
        parameter_bytes=parameter_bytes,
        experts_per_token=next((count for count in experts if isinstance(count, int)), 1),
    )


def _cache_argument(name: str, model: Any) -> str:
    """Return what a decoder calls its argument for a cache; another model is refused."""
    if model.config.is_encoder_decoder:
        raise _no_decoder(name, model, "has an encoder")
    parameters = inspect.signature(model.forward).parameters
    keys = [key for key in CACHES if key in parameters]
    if not keys or "input_ids" not in parameters:
        raise _no_decoder(name, model, "takes none")
    if not getattr(model.config, "is_decoder", True):  # only configurations of encoders have it
        raise _no_decoder(name, model, "is an encoder; the setting is_decoder=true makes it one")
    if any("dynamic" in str(getattr(module, "rope_type", "")) for module in model.modules()):
        raise WorkloadError(
            f"transformers:{name}: expected rotary embeddings that depend on no values, got "
            'rope_type dynamic; the setting rope_parameters={"rope_type": "linear", "factor": 2.0} '
            "costs the same"
        )
    return keys[0]


def _no_decoder(name: str, model: Any, reason: str) -> WorkloadError:
    return WorkloadError(
        f"transformers:{name}: expected a decoder with a cache of keys and values, got "
        f"{type(model).__name__}, which {reason}"
    )


def _warn_of_extra_work(name: str, text: Any, *, has_windows: bool) -> None:
    heads = getattr(text, "num_attention_heads", None)
    shares_heads = getattr(text, "num_key_value_heads", heads) != heads
    is_eager = text._attn_implementation == "eager"  # the library has no fused attention for it
    work = EXTRA_WORK.get(text.model_type, _COPIES if is_eager and shares_heads else "")
    windows = "computes all pairs of tokens, with a mask of windows" if has_windows else ""
    if work or windows:
        warnings.warn(
            f"transformers:{name}: bytes or FLOPs are too high for a server, as the step of the "
            f"library {' and '.join(filter(None, (work, windows)))}",
            stacklevel=3,
        )


def _cache(name: str, model: Any, key: str, words: Tensor, length: int) -> Any:
    """Return a cache with room for some tokens, those in it that are not among the new ones.

    How large its tensors are is found by a step of one token, for which they are made.
    """
    utils: Any = importlib.import_module("transformers.cache_utils")
    static_cache = utils.StaticCache(model.config, max_cache_len=length)
    layers = static_cache.layers
    for index, layer in enumerate(layers):
        if type(layer) not in (utils.StaticLayer, utils.StaticSlidingWindowLayer):
            raise WorkloadError(
                f"transformers:{name}: expected layers that keep keys and values, got a "
                f"{type(layer).__name__} in layer {index}"
            )
        layers[index] = _layer_class()(layer.max_cache_len, layer.is_sliding)
    try:
        with offline(), torch.no_grad():
            buffers = {key: buffer.to(words.device) for key, buffer in model.named_buffers()}
            inputs = {"input_ids": words[:, :1], key: static_cache, "use_cache": True}
            functional_call(model, buffers, (), inputs)
    except Exception as error:
        if "cannot be called on meta tensors" in str(error):
            raise WorkloadError(
                f"transformers:{name}: expected a step that depends on no values, got "
                f"{type(model).__name__}, whose code uses some"
            ) from error
        raise WorkloadError(f"transformers:{name}: {error_line(error)}") from error
    used = [layer for layer in layers if layer.is_initialized]
    if not used:
        raise _no_decoder(name, model, "keeps none")
    num_new = words.shape[1]
    positions: dict[int, Tensor] = {}  # of the new tokens in a layer, the same in all as long
    for layer in used:
        capacity = layer.max_cache_len
        if capacity not in positions:
            new_positions = torch.arange(length - num_new, length)[-capacity:] % capacity
            positions[capacity] = new_positions.to(words.device)
        layer.num_before, layer.position = length - num_new, positions[capacity]
    return static_cache


@cache
def _layer_class() -> type[Any]:
    """Return the class of the layers of a cache, of a library that may not be installed."""
    utils: Any = importlib.import_module("transformers.cache_utils")

    class HeldLayer(utils.StaticLayer):  # type: ignore[misc]
        """Keys and values of one layer, with the new ones put into the places of the oldest."""

        is_compileable = False  # without which one token needs no mask

        def __init__(self, max_cache_len: int, is_sliding: bool) -> None:
            self.keys: Tensor = torch.empty(0)
            self.values: Tensor = torch.empty(0)
            self.is_initialized = False
            self.max_cache_len = max_cache_len
            self.is_sliding = is_sliding
            self.num_before = 0
            self.position = torch.zeros(1, dtype=torch.int64)

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            self.keys = self._empty_cache(key_states)
            self.values = self._empty_cache(value_states)
            self.is_initialized = True

        def _empty_cache(self, states: Tensor) -> Tensor:
            return states.new_zeros(*states.shape[:2], self.max_cache_len, states.shape[-1])

        def update(
            self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                return key_states, value_states
            capacity = self.max_cache_len
            for cached, new in ((self.keys, key_states), (self.values, value_states)):
                cached.index_copy_(2, self.position, new[:, :, -capacity:])
            if key_states.shape[2] > capacity:  # each of a prompt's tokens sees a window of its own
                return key_states, value_states
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            if not self.is_initialized:
                return query_length, 0
            length = max(self.max_cache_len, query_length)
            return length, self.num_before + query_length - length

        def get_seq_length(self) -> int:
            return self.num_before

    return HeldLayer


def _held_bytes(model: Any, weight_bits: int) -> Iterator[tuple[str, int]]:
    """Yield the names of weights that are quantized, and the bytes that they are held in."""
    linear: Any = importlib.import_module("transformers.pytorch_utils").Conv1D
    logits = model.get_output_embeddings()
    for path, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear | linear) and module is not logits
        num_dims = 3 if hasattr(module, "num_experts") else 2  # a matrix of each expert
        for name, weight in module.named_parameters(recurse=False):
            if weight.dim() == num_dims and (is_linear or num_dims == 3):
                yield f"{path}.{name}", _bytes_of(weight.shape, weight_bits)


def _bytes_of(shape: torch.Size, weight_bits: int) -> int:
    rows, columns = shape[:-1].numel(), shape[-1]
    if weight_bits == 16:
        return 2 * rows * columns
    bits_of_block = WEIGHTS_PER_SCALE * weight_bits + BITS_OF_SCALE
    return rows * ceil(columns / WEIGHTS_PER_SCALE) * bits_of_block // 8
