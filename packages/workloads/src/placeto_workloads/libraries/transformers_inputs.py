"""The arguments that a model of the transformers library is called with."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import first_number
from placeto_workloads.models.training_step import LARGEST_SIZE, seeded, whole_number

DEFAULT_SEQUENCE_LENGTH = 128
# What limits the sequences of a model, in the order in which they count.
LENGTH_SETTINGS = (
    *("max_position_embeddings", "n_positions", "max_target_positions", "seq_length"),
    "max_seq_len",
)
# What classes end in that say of which class an example is, and those that make text.
CLASSIFIERS = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
    "ForXVector",
)
TEXT_MODELS = (
    "LM",
    "LMHeadModel",
    "DoubleHeadsModel",
    "ForConditionalGeneration",
    "ForSpeechSeq2Seq",
)
# Arguments that a loss is made of, besides those that are called labels.
LOSS_ARGUMENTS = ("start_positions", "future_values")
# Arguments that some classes fail without, although they have a default.
REQUIRED_ARGUMENTS = {"is_longer", "spatial_shapes", "use_image_text_matching_head", "visual_feats"}
NUM_CHOICES = 2
SIDES = ("image_size", "input_size", "img_size", "crop_size")
DEFAULT_SIDE = 224


def make_inputs(
    name: str,
    model: nn.Module,
    batch_size: int,
    sequence_length: int | None,
    *,
    device: torch.device | str,
    seed: int,
) -> dict[str, Any]:
    """Return the keyword arguments of one training step."""
    with seeded(seed):
        inputs = _Inputs(name, model, batch_size, sequence_length).all()
    return {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in inputs.items()
    }


def checked_length(name: str, model: Any, field: str, requested: Any, default: int) -> int:
    """Return a number of tokens that a model has positions for; by default the usual one."""
    text = model.config.get_text_config()
    key = next((key for key in LENGTH_SETTINGS if first_number(text, key)), "")
    rows = longest = first_number(text, key) or LARGEST_SIZE
    for path, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if path.endswith(".position_embeddings") and padding is not None:
            longest = len(module.weight) - padding - 1  # as tokens are counted from there
    length = min(default, longest) if requested is None else whole_number(field, requested)
    if length > longest:
        raise WorkloadError(
            f"{field}: expected at most {longest} tokens, as {key} of transformers:{name} is "
            f"{rows}, got {requested}; the setting {key}={length + rows - longest} allows them"
        )
    return length


class _Inputs:
    """The inputs of one model."""

    def __init__(self, name: str, model: Any, batch_size: int, sequence_length: int | None) -> None:
        self._name = name
        self._config: Any = model.config
        self._text: Any = self._config.get_text_config()
        self._class = type(model).__name__
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = [
            parameter
            for parameter in inspect.signature(model.forward).parameters.values()
            if parameter.kind not in variadic
        ]
        self._arguments = {parameter.name for parameter in parameters}
        self._required = {
            parameter.name for parameter in parameters if parameter.default is parameter.empty
        }
        self._required |= REQUIRED_ARGUMENTS & self._arguments
        if self._class.startswith(("Git", "Vilt")):
            self._required.add("pixel_values")
        self._main = str(getattr(model, "main_input_name", "input_ids"))
        self._batch = whole_number("batch_size", batch_size)
        self._length = checked_length(
            name, model, "sequence_length", sequence_length, DEFAULT_SEQUENCE_LENGTH
        )

    def all(self) -> dict[str, Any]:
        makers: dict[str, Callable[[], Tensor]] = {
            "input_ids": self._words,
            "pixel_values": self._images,
            "pixel_values_videos": self._images,
            "input_features": self._features,
            "input_values": self._sound,
            "bbox": lambda: torch.zeros(self._batch, self._length, 4, dtype=torch.int64),
        }
        main = self._main if self._main in self._arguments else "input_ids"
        names = [main, *sorted(self._required - {main}), *sorted({"bbox"} & self._arguments)]
        for name in names:
            if name not in makers or name not in self._arguments:
                raise WorkloadError(
                    f"transformers:{self._name}: expected a model of text, images or sound, "
                    f"got {self._class}, which takes {name}"
                )
        self._check_loss()
        inputs: dict[str, Any] = {name: makers[name]() for name in names}
        if {"input_ids", "pixel_values"} <= self._arguments and "return_loss" in self._arguments:
            inputs |= {"input_ids": self._words(), "pixel_values": self._images()}
            return inputs | {"return_loss": True}
        targets = {
            name: target for name, target in self._targets().items() if name in self._arguments
        }
        if (
            not targets
            and self._config.is_encoder_decoder
            and "decoder_input_ids" in self._arguments
        ):
            inputs["decoder_input_ids"] = self._words()
        of_loss = sorted(
            name for name in self._arguments if "label" in name or name in LOSS_ARGUMENTS
        )
        if of_loss and not targets.keys() & {"labels", "start_positions", "bool_masked_pos"}:
            warnings.warn(
                f"transformers:{self._name}: {self._class} makes its own loss of "
                f"{', '.join(of_loss)}, which are not made here; the mean of what it gives is the "
                "loss",
                stacklevel=2,
            )
        return inputs | targets

    def _check_loss(self) -> None:
        """Refuse classes whose steps need inputs that have more than shapes."""
        finds_ends = self._config.is_encoder_decoder and self._class.endswith(
            "ForSequenceClassification"
        )
        if finds_ends or "sampled_negative_indices" in self._arguments:
            unknown_value = (
                "the end of each text" if finds_ends else "the parts that it is to tell apart"
            )
            raise WorkloadError(
                f"transformers:{self._name}: expected a class whose step depends on no values, got "
                f"{self._class}, which needs to know {unknown_value}"
            )

    def _words(self) -> Tensor:
        size = self._vocabulary()
        if size is None:
            raise WorkloadError(
                f"transformers:{self._name}: expected a configuration with a vocab_size, got none"
            )
        choices = (NUM_CHOICES,) if self._class.endswith("ForMultipleChoice") else ()
        return torch.randint(size, (self._batch, *choices, self._length))

    def _images(self) -> Tensor:
        vision = getattr(self._config, "vision_config", None) or self._config
        channels = first_number(vision, "num_channels", "in_channels", "in_chans") or 3
        frames = first_number(vision, "num_frames", "frames_per_clip")
        shape = [frames] if frames and "Video" in self._class else []
        return torch.randn(self._batch, *shape, channels, *self._sides(vision))

    def _sides(self, vision: Any) -> tuple[int, int]:
        for key in SIDES:
            side = getattr(vision, key, None)
            if isinstance(side, int):
                return side, side
            if isinstance(side, dict) and {"height", "width"} <= side.keys():
                return side["height"], side["width"]
            if isinstance(side, list | tuple) and len(side) >= 2:
                return side[-2], side[-1]
        return DEFAULT_SIDE, DEFAULT_SIDE

    def _features(self) -> Tensor:
        """Return a spectrum: what Whisper takes is of one length, and has its frames last."""
        bins = first_number(self._config, "num_mel_bins")
        positions = first_number(self._config, "max_source_positions")
        if bins and positions and self._class.startswith("Whisper"):
            return torch.randn(self._batch, bins, 2 * positions)
        keys = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins")
        width = first_number(self._config, *keys) or 80
        return torch.randn(self._batch, self._length, width)

    def _sound(self) -> Tensor:
        bins = first_number(self._config, "num_mel_bins")
        frames = first_number(self._config, "max_length")
        if bins and frames and not hasattr(self._config, "conv_stride"):
            return torch.randn(self._batch, frames, bins)
        samples = self._length
        for stride in getattr(self._config, "conv_stride", ()) or (320,):
            samples *= stride
        channels = first_number(self._config, "audio_channels")  # of what codes any sound
        if channels:
            return torch.randn(self._batch, channels, samples)
        return torch.randn(self._batch, samples)

    def _targets(self) -> dict[str, Tensor]:
        """Return what the model makes its loss of; nothing where that is not known."""
        batch, words = self._batch, (self._batch, self._length)
        makers: dict[tuple[str, ...], Callable[[], dict[str, Tensor]]] = {
            CLASSIFIERS: lambda: {"labels": self._class_of_each()},
            ("ForTokenClassification",): lambda: {"labels": self._classes(*words)},
            ("ForSemanticSegmentation",): lambda: {
                "labels": self._classes(batch, *self._sides(self._config))
            },
            ("ForNextSentencePrediction",): lambda: {"labels": torch.randint(2, (batch,))},
            ("ForMultipleChoice",): lambda: {"labels": torch.randint(NUM_CHOICES, (batch,))},
            ("ForQuestionAnswering", "ForQuestionAnsweringSimple"): lambda: {
                name: torch.randint(self._length, (batch,))
                for name in ("start_positions", "end_positions")
            },
            ("ForMaskedImageModeling",): self._hidden_patches,
            # A sign takes a frame, and two where it stands twice in a row; 0 is none.
            ("ForCTC",): lambda: {"labels": self._words()[:, : -(-self._length // 4)].clamp(min=1)},
            ("ForPreTraining",): self._targets_of_pretraining,
            TEXT_MODELS: lambda: {"labels": self._words()} if self._vocabulary() else {},
        }
        for ends, maker in makers.items():
            if self._class.endswith(ends):
                return maker()
        return {}

    def _targets_of_pretraining(self) -> dict[str, Tensor]:
        """Return words and what is said of sentences; else which words are not the text's own."""
        sentence_targets = self._arguments & {"next_sentence_label", "sentence_order_label"}
        if not sentence_targets:
            return {"labels": torch.randint(2, (self._batch, self._length))}
        sentence_labels = {name: torch.randint(2, (self._batch,)) for name in sentence_targets}
        return {"labels": self._words(), **sentence_labels}

    def _hidden_patches(self) -> dict[str, Tensor]:
        patch = first_number(self._config, "patch_size")
        if patch is None or "labels" in self._arguments:  # of the pieces that are hidden
            return {}
        height, width = self._sides(self._config)
        hidden = torch.randint(2, (self._batch, (height // patch) * (width // patch)))
        return {"bool_masked_pos": hidden.bool()}

    def _class_of_each(self) -> Tensor:
        """Return the class of each example, or what ``problem_type`` has instead."""
        count = self._num_classes()
        problem = getattr(self._config, "problem_type", None)
        if problem == "multi_label_classification":
            return torch.randint(2, (self._batch, count)).float()
        if problem == "regression" or (problem is None and count == 1):
            return torch.randn((self._batch, count)).squeeze(1)
        return self._classes(self._batch)

    def _classes(self, *shape: int) -> Tensor:
        return torch.randint(self._num_classes(), shape)

    def _num_classes(self) -> int:
        return max(1, first_number(self._config, "num_labels") or 1)

    def _vocabulary(self) -> int | None:
        return first_number(self._text, "vocab_size") or first_number(self._config, "vocab_size")
