"""Models of the transformers library, from a configuration alone."""

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import built, import_library, nearest, offline, one_line
from placeto_workloads.libraries.transformers_inputs import inputs_of
from placeto_workloads.models.training_step import TrainingStep

# What a model is for, where nobody says it: the first that there is for its architecture.
TASKS = {
    "contrastive": (
        "AutoModelForZeroShotImageClassification",
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "speech-seq2seq": ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    "masked-lm": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "causal-lm": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "image-classification": (
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
    "video-classification": (
        "AutoModelForVideoClassification",
        "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    ),
    "audio-classification": (
        "AutoModelForAudioClassification",
        "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    ),
    "semantic-segmentation": (
        "AutoModelForSemanticSegmentation",
        "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    ),
    "depth-estimation": (
        "AutoModelForDepthEstimation",
        "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    ),
    "object-detection": (
        "AutoModelForObjectDetection",
        "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    ),
    "image-text-to-text": (
        "AutoModelForImageTextToText",
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    ),
    "none": ("AutoModel", "MODEL_MAPPING_NAMES"),
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
# What would bring other code or other weights than the library's own.
REFUSED = (
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "quantization_config",
)


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
    its architecture asks for. Caches, dropped layers and masked features are off; there are labels
    wherever the model makes a loss of them, and no masks of attention.

    Parameters
    ----------
    name
        A ``model_type``, such as ``"gpt2"``, or the path of a ``config.json``.
    batch_size
        Examples in a step.
    sequence_length
        Tokens, or frames of sound, in an example; by default 128, or as many as the model can take.
    task
        Task of the model, one of `TASKS`; by default that of the configuration, or else the first
        that its architecture has.
    device
        Device of weights and inputs; on the default, meta, weights take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Settings of the configuration, of any type of JSON.

    Raises
    ------
    WorkloadError
        When there is no such architecture, task or setting, or the library refuses a value.
    """
    library = import_library("transformers", "transformers")
    library.logging.set_verbosity_error()  # about kernels that are not installed
    with offline():
        config = _config(library, name, settings)
        model_class = _model_class(library, name, config, task)
        try:
            model = built(lambda: model_class.from_config(config), device, seed).train()
        except Exception as error:
            raise WorkloadError(f"transformers:{name}: {one_line(error)}") from error
    inputs = inputs_of(name, model, batch_size, sequence_length, device=device, seed=seed)
    return TrainingStep(model, inputs)


def _config(library: Any, name: str, settings: Mapping[str, Any]) -> Any:
    given = _read(name) if _is_path(name) else {"model_type": name}
    architectures = given.get("architectures")
    model_type = given.get("model_type")
    if not isinstance(model_type, str) or model_type not in library.CONFIG_MAPPING:
        known = list(library.CONFIG_MAPPING.keys())
        raise WorkloadError(
            f"transformers:{name}: expected a known model_type, such as "
            f"{nearest(str(model_type), known)}, got {model_type!r}"
        )
    config_class = library.CONFIG_MAPPING[model_type]
    _check_settings(name, config_class, settings)
    try:
        config = config_class.from_dict(_harmless(_merged(given, settings)))
    except Exception as error:
        raise WorkloadError(
            f"transformers:{name}: expected settings that the library takes, got {one_line(error)}"
        ) from error
    config.architectures = architectures if isinstance(architectures, list) else []
    for part in _parts(config):
        for key, value in FIXED.items():
            if hasattr(part, key):
                setattr(part, key, value)
    if config.is_encoder_decoder:  # labels, shifted by one, are what the decoder reads
        for key in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, key, None) is None:
                setattr(config, key, 0)
    return config


def _check_settings(name: str, config_class: Any, settings: Mapping[str, Any]) -> None:
    if not settings:
        return
    usual = config_class()
    for key in settings:
        if key in REFUSED or key.startswith("_") or not hasattr(usual, key):
            known = [known for known in usual.to_dict() if known not in REFUSED]
            raise WorkloadError(
                f"transformers:{name}: expected settings of {usual.model_type}, such as "
                f"{nearest(key, known)}, got {key!r}"
            )


def _merged(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with settings in their place; what is a mapping in both is merged, too."""
    merged = dict(values)
    for key, value in settings.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _harmless(value: Any) -> Any:
    """Return a value without what would bring other code, however deep it stands."""
    if isinstance(value, Mapping):
        return {
            key: _harmless(item)
            for key, item in value.items()
            if key not in REFUSED and not key.startswith("_")
        }
    return [_harmless(item) for item in value] if isinstance(value, list) else value


def _is_path(name: str) -> bool:
    return name.endswith(".json") or "/" in name


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: expected JSON, got {one_line(error)}") from error
    if not isinstance(found, dict):
        raise WorkloadError(f"{path}: expected a mapping, got {type(found).__name__}")
    return found


def _parts(config: Any) -> Iterator[Any]:
    """Give a configuration and those within it."""
    yield config
    for key in getattr(config, "sub_configs", {}):
        part = getattr(config, key, None)
        if part is not None and not isinstance(part, dict):
            yield from _parts(part)


def _model_class(library: Any, name: str, config: Any, task: str | None) -> Any:
    classes = importlib.import_module("transformers.models.auto.modeling_auto")
    found = {
        known: names[config.model_type]
        for known, (_, mapping) in TASKS.items()
        if config.model_type in (names := dict(getattr(classes, mapping, {})))
    }
    if not found:
        raise WorkloadError(
            f"transformers:{name}: expected an architecture with a model of its own, "
            f"got {config.model_type}"
        )
    if task is not None and task not in found:
        raise WorkloadError(
            f"task: expected one of {', '.join(found)} for {config.model_type}, got {task!r}"
        )
    wanted = config.architectures or []
    stated = next((known for known, names in found.items() if _first(names) in wanted), None)
    return getattr(library, TASKS[task or stated or next(iter(found))][0])


def _first(names: str | tuple[str, ...]) -> str:
    return names if isinstance(names, str) else names[0]
