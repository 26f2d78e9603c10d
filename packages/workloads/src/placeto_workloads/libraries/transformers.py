"""Models of the transformers library, from a configuration alone."""

import importlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from placeto_graphs import error_line
from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.gguf_files import GgufModel
from placeto_workloads.libraries.loading import (
    build_on_device,
    import_library,
    offline,
    read_json,
    such_as,
)
from placeto_workloads.libraries.transformers_inputs import make_inputs
from placeto_workloads.libraries.weight_files import INDEX, SafetensorsModel, StoredModel
from placeto_workloads.models.training_step import TrainingStep

# What a model is for, and the library's table of the classes for that. Where nobody says it, it is
# the first that there is for its architecture.
TASKS = {
    "contrastive": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "video-classification": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "semantic-segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "depth-estimation": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "object-detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "none": "MODEL_MAPPING_NAMES",
}
# What makes a step depend on luck or on earlier steps, and what none of these would change.
FIXED: Mapping[str, Any] = {
    "use_cache": False,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
    "use_pretrained_backbone": False,
}
# What would bring other code than the library's own.
REFUSED = ("attn_implementation", "auto_map", "custom_pipelines", "experts_implementation")
QUANTIZATION = "quantization_config"
LAYERS = "num_hidden_layers"
# Functions of state-space and linear attention layers that have fast kernels elsewhere.
LOOPS = re.compile("selective_scan|chunk_scan|gated_delta_rule|chunk_kda|rwkv_linear_attention")
SIZE = re.compile("^(num|pad)_|_(dim|size)$")  # names of numbers that models are built of


def transformers_step(
    name: str,
    *,
    batch_size: int = 8,
    sequence_length: int | None = None,
    task: str | None = None,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a training step of a model of the transformers library.

    Nothing is downloaded: the model is made of its configuration, and its inputs are those that
    its class takes. Caches, dropped layers and masked features are off. There are labels if they
    are known; otherwise a warning says that the loss is the mean of the outputs. There are no masks
    of attention.

    Parameters
    ----------
    name
        A ``model_type`` of the library, the path of a ``config.json``, or that of a file or folder
        of weights, of which the headers alone are read.
    batch_size
        Number of sequences, images or sounds in a step.
    sequence_length
        Number of tokens of a sequence; by default 128, or as many as the configuration allows.
    task
        Purpose of the model, such as ``"masked-lm"``, one of `TASKS`; by default the class that the
        configuration names, or the first task that there is for the architecture.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Settings of the configuration, of any type of JSON.

    Raises
    ------
    WorkloadError
        If the library is not installed, or has no such model or setting.
    """
    stored = stored_model(name)
    model = build_model(name, settings, task, stored, device=device, seed=seed).train()
    warn_of_loops(name, model)
    if stored:
        _warn_of_widths(name, model, stored.parameter_bytes(model))
    inputs = make_inputs(name, model, batch_size, sequence_length, device=device, seed=seed)
    # No label of a transcript is padding.
    mask_fraction = 1.0 if type(model).__name__.endswith("ForCTC") else None
    return TrainingStep(model, inputs, mask_fraction=mask_fraction)


def stored_model(path: str) -> StoredModel | None:
    """Return the model that is in a file of weights, or in a folder; None if it is neither."""
    if path.endswith(".gguf"):
        return GgufModel(Path(path))
    if path.endswith((".safetensors", INDEX)) or Path(path).is_dir():
        return SafetensorsModel(Path(path))
    return None


def build_model(
    name: str,
    settings: Mapping[str, Any],
    task: str | None,
    stored: StoredModel | None,
    *,
    device: torch.device | str,
    seed: int,
    usual_task: str | None = None,
    usual_dtype: torch.dtype | None = None,
) -> nn.Module:
    """Build a model of the transformers library from its configuration."""
    library = import_library("transformers", "transformers")
    library.logging.set_verbosity_error()  # about kernels that are not installed
    with offline():
        config = _config(library, name, settings, stored)
        model_class = _model_class(library, name, config, task, usual_task)

        def make() -> nn.Module:
            class_config = _config_of_class(name, config, model_class)
            dtype = class_config.dtype or usual_dtype
            try:
                built_network: nn.Module = model_class._from_config(class_config, dtype=dtype)
            except TypeError as error:
                values = class_config.to_dict().items()
                unset = [key for key, value in values if value is None and SIZE.search(key)]
                if not unset:
                    raise
                raise WorkloadError(
                    f"transformers:{name}: expected settings that its configuration leaves open, "
                    f"such as {', '.join(unset)}, got {error_line(error)}"
                ) from error
            return built_network

        return build_on_device(f"transformers:{name}", make, device, seed)


def warn_of_loops(name: str, model: nn.Module) -> None:
    """Warn of layers whose code goes from one token of a sequence to the next."""
    if LOOPS.search(_source(type(model).__module__)):
        warnings.warn(
            f"transformers:{name}: ops, bytes and time are too high, as layers with a state loop "
            "over tokens in the library's own code; kernels of mamba-ssm or fla do not",
            stacklevel=3,
        )


def _warn_of_widths(source: str, model: nn.Module, num_bytes: Mapping[str, int]) -> None:
    weights = dict(model.named_parameters())
    if any(weights[name].nbytes != stored_bytes for name, stored_bytes in num_bytes.items()):
        warnings.warn(
            f"{source}: a training step counts weights in the dtype of the configuration; steps of "
            "inference (decode, prefill) count them as the file has them",
            stacklevel=3,
        )


def _config(
    library: Any, name: str, settings: Mapping[str, Any], stored: StoredModel | None
) -> Any:
    is_file = bool(stored) or name.endswith(".json") or ("/" in name and os.path.exists(name))
    file_values: Mapping[str, Any] = {"model_type": name}
    if is_file:
        file_values = stored.config if stored else read_json(Path(name))
    model_type = file_values.get("model_type")
    if not isinstance(model_type, str) or model_type not in library.CONFIG_MAPPING:
        raise WorkloadError(_unknown_type(library, name, model_type, is_file=is_file))
    config_class = library.CONFIG_MAPPING[model_type]
    _check_settings(name, config_class, settings)
    values = _harmless(name, _merged(file_values, settings))
    architectures = values.pop("architectures", [])
    try:
        config = config_class.from_dict(values)
    except Exception as error:
        cause = error.__cause__ or error  # what a validator of the library has wrapped
        raise WorkloadError(
            f"transformers:{name}: expected settings that it takes, got {error_line(cause)}"
        ) from error
    if isinstance(architectures, str):
        architectures = [architectures]
    config.architectures = architectures if isinstance(architectures, list) else []
    for nested_config in _with_sub_configs(config):
        for key, value in FIXED.items():
            if hasattr(nested_config, key):
                setattr(nested_config, key, value)
    if config.is_encoder_decoder:  # labels, shifted by one, are what the decoder reads
        for key in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, key, None) is None:
                setattr(config, key, 0)
    return config


def _unknown_type(library: Any, name: str, model_type: Any, *, is_file: bool) -> str:
    """Say which model type could be meant: by a class, a name of the hub, or a misspelt one."""
    model_types = list(library.CONFIG_MAPPING.keys())
    suggestion = such_as(str(model_type), model_types)
    if is_file:
        return f"{name}: expected a known model_type{suggestion}, got {model_type!r}"
    config_class = getattr(getattr(library, name, None), "config_class", None)
    if config_class is not None:
        return (
            f"transformers:{name}: expected the model_type of this class, "
            f"{config_class.model_type}, with the setting architectures={name}"
        )
    type_in_name = _type_in(name, model_types)
    if type_in_name is not None:
        suggestion = f", such as {type_in_name}"
    return (
        f"transformers:{name}: expected a known model_type{suggestion}, or the path of a "
        f"config.json, as nothing is downloaded, got {name!r}"
    )


def _type_in(name: str, model_types: Iterable[str]) -> str | None:
    """Return the longest known model type that a name has as words, in any spelling.

    Such as ``llama`` in ``"meta-llama/Llama-2-7b-hf"``, and ``gpt_neox`` in ``"GPT-NeoX-20B"``.
    """
    words = re.findall("[a-z0-9]+", name.rpartition("/")[2].lower())
    joined_words = {
        "".join(words[begin:end])
        for begin in range(len(words))
        for end in range(begin + 1, len(words) + 1)
    }
    matching_types = [
        model_type
        for model_type in model_types
        if re.sub("[^a-z0-9]", "", model_type) in joined_words
    ]
    return max(matching_types, key=len, default=None)


def _check_settings(name: str, config_class: Any, settings: Mapping[str, Any]) -> None:
    if not settings:
        return
    usual = config_class()
    for key, value in settings.items():
        if key == QUANTIZATION and value is None:
            continue
        is_known = hasattr(usual, key) or _is_read(usual, key)
        if key in (*REFUSED, QUANTIZATION) or key.startswith("_") or not is_known:
            setting_names = [setting for setting in usual.to_dict() if setting not in REFUSED]
            raise WorkloadError(
                f"transformers:{name}: expected a setting of {usual.model_type}"
                f"{such_as(key, setting_names)}, got {key!r}"
            )


def _is_read(usual: Any, key: str) -> bool:
    """Return whether code of the library reads a setting that is there only if it is given."""
    config_module = type(usual).__module__
    modules = [config_module, config_module.replace(".configuration_", ".modeling_")]
    modules += ["transformers.modeling_rope_utils"] if hasattr(usual, "rope_parameters") else []
    reads = re.compile(rf'(getattr\(\w+, |kwargs\.\w+\()"{re.escape(key)}"')
    return any(reads.search(_source(module)) for module in modules)


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return Path(spec.origin).read_text(encoding="utf-8")


def _with_fewer_layers(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values whose lists of one value for each layer have those of the first layers."""
    layers, fewer = values.get(LAYERS), settings.get(LAYERS)
    if type(layers) is not int or type(fewer) is not int or not 1 <= fewer < layers:
        return dict(values)
    return {
        key: value[:fewer] if isinstance(value, list) and len(value) == layers else value
        for key, value in values.items()
    }


def _merged(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with settings in their place; what is a mapping in both is merged, too."""
    merged = _with_fewer_layers(values, settings)
    for key, value in settings.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _harmless(name: str, value: Any) -> Any:
    """Return a value without what would bring other code, however deep it stands."""
    if isinstance(value, list):
        return [_harmless(name, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.get(QUANTIZATION) is not None:
        raise WorkloadError(
            f"transformers:{name}: expected no {QUANTIZATION}, as quantized weights cannot be "
            f"counted; the setting {QUANTIZATION}=null counts weights of the dtype that it has"
        )
    return {
        key: _harmless(name, item)
        for key, item in value.items()
        if key not in (*REFUSED, QUANTIZATION) and not key.startswith("_")
    }


def _with_sub_configs(config: Any) -> Iterator[Any]:
    """Give a configuration and those within it."""
    yield config
    for key in getattr(config, "sub_configs", {}):
        sub_config = getattr(config, key, None)
        if sub_config is not None and not isinstance(sub_config, dict):
            yield from _with_sub_configs(sub_config)


def _model_class(
    library: Any, name: str, config: Any, task: str | None, usual_task: str | None
) -> Any:
    """Return the class that a configuration names, or that there is for a task."""
    named = [] if task else [str(architecture) for architecture in config.architectures]
    for architecture in named:
        named_class = getattr(library, architecture, None)
        if isinstance(named_class, type) and issubclass(named_class, library.PreTrainedModel):
            return named_class
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    classes_by_task = {}
    for known_task, table in TASKS.items():
        class_names = dict(getattr(tables, table, {}))
        if config.model_type in class_names:
            classes_by_task[known_task] = class_names[config.model_type]
    if not classes_by_task:
        raise WorkloadError(
            f"transformers:{name}: expected an architecture with a model of its own, "
            f"got {config.model_type}"
        )
    if task is not None and task not in classes_by_task:
        tasks = ", ".join(classes_by_task)
        raise WorkloadError(f"task: expected one of {tasks} for {config.model_type}, got {task!r}")
    usual = usual_task if usual_task in classes_by_task else next(iter(classes_by_task))
    names = classes_by_task[task or usual]
    class_name = names if isinstance(names, str) else names[0]
    if named:
        warnings.warn(
            f"transformers:{name}: no model of the library is called {named[0]}, as architectures "
            f"says; {class_name} is built",
            stacklevel=2,
        )
    return getattr(library, class_name)


def _config_of_class(name: str, config: Any, model_class: Any) -> Any:
    """Return a configuration, or the part for its text, whichever a class is built of."""
    text_config = config.get_text_config()
    if "Classification" in model_class.__name__ and getattr(text_config, "pad_token_id", 0) is None:
        text_config.pad_token_id = 0  # the last word that is no padding is what it classifies
    for candidate in (config, text_config):
        if isinstance(candidate, model_class.config_class):
            return candidate
    raise WorkloadError(
        f"transformers:{name}: expected architectures to name a class of {config.model_type}, got "
        f"{model_class.__name__}, which is one of {model_class.config_class.model_type}"
    )
