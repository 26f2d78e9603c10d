"""Inference with language models of the transformers library: one step with a cache of tokens.

A decode step reads the last token of each sequence, and the cache of those before it: keys and
values of each, or one state of all. A prefill step reads a whole prompt and fills the cache. Begin
to read at `inference_step`.
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

from placeto_graphs import TokenCache, error_line
from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import first_number, offline
from placeto_workloads.libraries.transformers import build_model, stored_model, warn_of_loops
from placeto_workloads.libraries.transformers_inputs import checked_length
from placeto_workloads.models.training_step import (
    LARGEST_SIZE,
    TrainingStep,
    seeded,
    whole_number,
)

INFERENCE_MODES = ("prefill", "decode")
DEFAULT_CONTEXT = 2048  # tokens, or as many as the configuration allows
LONGEST = "longest"  # context, which is as many
DEFAULT_DTYPE = torch.bfloat16  # where the configuration says none
WEIGHT_BITS = (4, 8, 16)  # of weights, and of keys and values
# Quantized weights are held as GGUF's Q4_0 and Q8_0 are (ggml's `block_q4_0` and `block_q8_0`): a
# row in blocks of 32 weights with a scale of 16 bits, which makes 4.5 and 8.5 bits per weight.
WEIGHTS_PER_SCALE = 32
BITS_OF_SCALE = 16
# llama.cpp keeps the output layer of files of 4 bits in Q6_K if its rows are whole blocks of that
# (ggml's `block_q6_K`), else in 8 bits. Those of 8 bits have 8 bits there, too.
WEIGHTS_OF_Q6_K, BYTES_OF_Q6_K = 256, 210
# What models call their argument for a cache: from version 5.24 of transformers on, before, and
# where there is nothing but a state.
CACHES = ("cache", "past_key_values", "cache_params")
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
    context: int | str | None = None,
    batch_size: int = 1,
    weight_bits: int | None = None,
    cache_bits: int | None = None,
    cache_on_cpu: bool = False,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a step of inference with a language model of the transformers library.

    Nothing is downloaded: the model is made of its configuration. Its weights have the dtype of
    the configuration, bfloat16 if that says none. The keys and values of each layer are in a static
    cache: a tensor of ``context`` tokens each, or of those of a sliding window. A layer of linear
    attention or of a state space has its state there, of any number of tokens. A warning says if
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
        as the configuration allows. ``"longest"`` is that.
    batch_size
        Number of sequences in a step.
    weight_bits
        Number of bits of each weight of embeddings, linear layers and experts: 16, 8 or 4. With 8
        and 4, blocks of 32 weights have a scale of 16 bits each. With 4, the output layer has 6.6
        bits, as llama.cpp's Q6_K. Norms, routers and biases keep their dtype, and all is computed
        with it. By default all weights have their dtype.
    cache_bits
        Number of bits of each number of keys and values: 16, 8 or 4, with scales as those of
        weights. States keep their dtype. By default the cache has the dtype of the weights.
    cache_on_cpu
        Whether keys and values are in the memory of the host, as with llama.cpp's
        ``--no-kv-offload``. A processor then computes the attention.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Settings of the configuration, of any type of JSON.

    Raises
    ------
    WorkloadError
        When there is no such model or setting, it keeps nothing of earlier tokens, or the context
        is longer than the configuration allows.
    """
    library, _, name = source.partition(":")
    if library != "transformers":
        raise WorkloadError(f"mode: expected a model of transformers for {mode}, got {source}")
    if mode not in INFERENCE_MODES:
        raise WorkloadError(f"mode: expected one of {', '.join(INFERENCE_MODES)}, got {mode!r}")
    for option, bits in (("weight_bits", weight_bits), ("cache_bits", cache_bits)):
        if bits is not None and bits not in WEIGHT_BITS:
            raise WorkloadError(f"{option}: expected 4, 8 or 16, got {bits}")
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
    if mode == "prefill":
        warn_of_loops(name, model)
    held_bytes = dict(stored.parameter_bytes(model)) if stored else {}
    if weight_bits is not None:
        held_bytes = dict(_held_bytes(model, weight_bits))
    tokens, usual = (None, LARGEST_SIZE) if context == LONGEST else (context, DEFAULT_CONTEXT)
    length = checked_length(name, model, "context", tokens, usual)
    num_new = 1 if mode == "decode" else length
    with seeded(seed):
        vocabulary = model.config.get_text_config().vocab_size
        words = torch.randint(vocabulary, (batch_size, num_new)).to(device)
    cache = _cache(name, model, key, words, length)
    inputs = {"input_ids": words, key: cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    text = model.config.get_text_config()
    attention = {
        index: layer for index, layer in enumerate(cache.layers) if isinstance(layer, _held_layer())
    }
    shortest = min((layer.max_cache_len for layer in attention.values()), default=length)
    _warn_of_extra_work(name, text, has_windows=shortest < num_new)
    tensors = {
        f"input.{key}.layers.{index}.{tensor}": getattr(layer, tensor)
        for index, layer in attention.items()
        if layer.is_initialized
        for tensor in ("keys", "values")
    }
    if cache_bits is not None:
        held_bytes |= {
            tensor: _bytes_of(numbers.shape, cache_bits) for tensor, numbers in tensors.items()
        }
    usual_bits = max((8 * numbers.itemsize for numbers in tensors.values()), default=16)
    return TrainingStep(
        model,
        inputs,
        mode="inference",
        parameter_bytes=held_bytes or None,
        experts_per_token=first_number(text, *EXPERTS_PER_TOKEN) or 1,
        cache=TokenCache(
            context=length,
            sequences=batch_size,
            bits=cache_bits or usual_bits,
            on_cpu=cache_on_cpu,
        ),
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
        f"transformers:{name}: expected a decoder with a cache of earlier tokens, got "
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
        layers[index] = _held(name, index, layer)
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
    attention = [
        layer for layer in layers if isinstance(layer, _held_layer()) and layer.is_initialized
    ]
    with_states = [layer for layer in layers if hasattr(layer, "has_previous_state")]
    if not attention and not any(any(layer.has_previous_state.values()) for layer in with_states):
        raise _no_decoder(name, model, "keeps none")
    num_new = words.shape[1]
    if num_new > 1:  # a prompt begins without a state
        for layer in with_states:
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)
    positions: dict[int, Tensor] = {}  # of the new tokens in a layer, the same in all as long
    for layer in attention:
        capacity = layer.max_cache_len
        if capacity not in positions:
            new_positions = torch.arange(length - num_new, length)[-capacity:] % capacity
            positions[capacity] = new_positions.to(words.device)
        layer.num_before, layer.position = length - num_new, positions[capacity]
    return static_cache


def _held(name: str, index: int, layer: Any) -> Any:
    """Return what keeps the tokens of a layer, in place of what the library has for that."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    static = (utils.StaticLayer, utils.StaticSlidingWindowLayer)
    # Versions before have neither states nor layers without a cache here.
    state = getattr(utils, "LinearAttentionLayer", ())
    without = getattr(utils, "DummyLayer", ())
    has_tokens, has_state = isinstance(layer, static), isinstance(layer, state)
    is_known = type(layer) in static or isinstance(layer, without) or has_state
    if not is_known:
        raise WorkloadError(
            f"transformers:{name}: expected layers that keep keys and values or a state, got a "
            f"{type(layer).__name__} in layer {index}"
        )
    if has_tokens and has_state:
        return _held_layer_with_state()(
            layer.max_cache_len, layer.is_sliding, layer.number_of_states
        )
    return _held_layer()(layer.max_cache_len, layer.is_sliding) if has_tokens else layer


@cache
def _held_layer_with_state() -> type[Any]:
    """Return the class of layers that keep a state beside keys and values."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    held: Any = _held_layer()

    class HeldLayerWithState(utils.LinearAttentionLayer, held):  # type: ignore[misc]
        """A state, and keys and values, of one layer."""

        is_compileable = False

        def __init__(self, max_cache_len: int, is_sliding: bool, number_of_states: int) -> None:
            held.__init__(self, max_cache_len, is_sliding)
            utils.LinearAttentionLayer.__init__(self, number_of_states)

        def lazy_initialization(self, *keys_and_values: Tensor, **states: Any) -> None:
            if keys_and_values:
                held.lazy_initialization(self, *keys_and_values)
            else:
                utils.LinearAttentionLayer.lazy_initialization(self, **states)

    return HeldLayerWithState


@cache
def _held_layer() -> type[Any]:
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
    words = model.get_input_embeddings()
    logits = getattr(model.get_output_embeddings(), "weight", None)
    for path, module in model.named_modules():
        is_matrix = isinstance(module, nn.Linear | linear) or module is words
        num_dims = 3 if hasattr(module, "num_experts") else 2  # a matrix of each expert
        for name, weight in module.named_parameters(recurse=False):
            if weight.dim() != num_dims or not (is_matrix or num_dims == 3):
                continue
            is_output = weight is logits
            if is_output and weight_bits == 4:
                yield f"{path}.{name}", _bytes_of_output(weight.shape)
            else:
                yield f"{path}.{name}", _bytes_of(weight.shape, weight_bits)


def _bytes_of_output(shape: torch.Size) -> int:
    blocks, rest = divmod(shape[-1], WEIGHTS_OF_Q6_K)
    return _bytes_of(shape, 8) if rest else shape[:-1].numel() * blocks * BYTES_OF_Q6_K


def _bytes_of(shape: torch.Size, weight_bits: int) -> int:
    rows, columns = shape[:-1].numel(), shape[-1]
    if weight_bits == 16:
        return 2 * rows * columns
    bits_of_block = WEIGHTS_PER_SCALE * weight_bits + BITS_OF_SCALE
    return rows * ceil(columns / WEIGHTS_PER_SCALE) * bits_of_block // 8
