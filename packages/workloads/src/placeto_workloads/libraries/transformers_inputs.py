"""What a model of the transformers library is called with."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from placeto_workloads.errors import WorkloadError

DEFAULT_SEQUENCE_LENGTH = 128
# What limits the sequences of a model, in the order in which they count.
LONGEST = ("max_position_embeddings", "n_positions", "max_target_positions", "seq_length")
SIDES = ("image_size", "input_size", "img_size", "crop_size")
DEFAULT_SIDE = 224


def inputs_of(
    name: str,
    model: nn.Module,
    batch_size: int,
    sequence_length: int | None,
    *,
    device: torch.device | str,
    seed: int,
) -> dict[str, Any]:
    """Return the keyword arguments of one training step.

    Parameters
    ----------
    name
        Name of the model in error messages.
    model
        A model of the transformers library.
    batch_size
        Examples in a step.
    sequence_length
        Tokens, or frames of sound, in each of them; None for what suits the model.
    device
        Device of the inputs.
    seed
        Seed of their values on any device but meta.

    Raises
    ------
    WorkloadError
        When it is not known what the model takes, or it cannot take so much.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inputs = _Inputs(name, model, batch_size, sequence_length).all()
    return {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in inputs.items()
    }


class _Inputs:
    """The inputs of one model."""

    def __init__(self, name: str, model: Any, batch_size: int, sequence_length: int | None) -> None:
        if batch_size < 1:
            raise WorkloadError(f"batch_size: expected at least 1, got {batch_size}")
        self._name = name
        self._config: Any = model.config
        self._text: Any = self._config.get_text_config()
        self._class = type(model).__name__
        parameters = inspect.signature(model.forward).parameters
        self._taken = set(parameters)
        self._needed = {
            name for name, parameter in parameters.items() if parameter.default is parameter.empty
        }
        self._main = str(getattr(model, "main_input_name", "input_ids"))
        self._batch = batch_size
        self._length = self._checked_length(sequence_length)

    def all(self) -> dict[str, Any]:
        makers: dict[str, Callable[[], Tensor]] = {
            "input_ids": self._words,
            "pixel_values": self._images,
            "pixel_values_videos": self._images,
            "input_features": self._features,
            "input_values": self._sound,
        }
        main = self._main if self._main in self._taken else "input_ids"
        if main not in makers or main not in self._taken:
            raise WorkloadError(
                f"transformers:{self._name}: expected a model of text, images or sound, "
                f"got {self._class}, which takes {main}"
            )
        inputs: dict[str, Any] = {main: makers[main]()}
        inputs |= {name: make() for name, make in makers.items() if name in self._needed - {main}}
        if {"input_ids", "pixel_values"} <= self._taken and "return_loss" in self._taken:
            inputs |= {"input_ids": self._words(), "pixel_values": self._images()}
            inputs["return_loss"] = True
        labels = self._labels()
        if labels is not None and "labels" in self._taken:
            inputs["labels"] = labels
        elif self._config.is_encoder_decoder and "decoder_input_ids" in self._taken:
            inputs["decoder_input_ids"] = self._words()
        if "bbox" in self._taken:
            inputs["bbox"] = torch.zeros(self._batch, self._length, 4, dtype=torch.int64)
        return inputs

    def _checked_length(self, given: int | None) -> int:
        longest = self._number(self._text, *LONGEST)
        if given is None:
            return min(DEFAULT_SEQUENCE_LENGTH, longest or DEFAULT_SEQUENCE_LENGTH)
        if given < 1 or (longest is not None and given > longest):
            limit = f"from 1 to {longest}" if longest else "at least 1"
            raise WorkloadError(
                f"sequence_length: expected {limit} for transformers:{self._name}, got {given}"
            )
        return given

    def _words(self) -> Tensor:
        size = self._number(self._text, "vocab_size") or self._number(self._config, "vocab_size")
        if size is None:
            raise WorkloadError(
                f"transformers:{self._name}: expected a configuration with a vocab_size, got none"
            )
        return torch.randint(size, (self._batch, self._length))

    def _images(self) -> Tensor:
        vision = getattr(self._config, "vision_config", None) or self._config
        channels = self._number(vision, "num_channels", "in_channels", "in_chans") or 3
        frames = self._number(vision, "num_frames", "frames_per_clip")
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
        bins = self._number(self._config, "num_mel_bins")
        positions = self._number(self._config, "max_source_positions")
        if bins and positions and self._class.startswith("Whisper"):
            return torch.randn(self._batch, bins, 2 * positions)
        keys = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins")
        width = self._number(self._config, *keys) or 80
        return torch.randn(self._batch, self._length, width)

    def _sound(self) -> Tensor:
        bins, frames = (self._number(self._config, key) for key in ("num_mel_bins", "max_length"))
        if bins and frames and not hasattr(self._config, "conv_stride"):
            return torch.randn(self._batch, frames, bins)
        samples = self._length
        for stride in getattr(self._config, "conv_stride", ()) or (320,):
            samples *= stride
        return torch.randn(self._batch, samples)

    def _labels(self) -> Tensor | None:
        """Return what the model makes its loss of; None where that takes more than a tensor."""
        if self._class.endswith(("ForImageClassification", "ForVideoClassification")):
            return self._classes(self._batch)
        if self._class.endswith(("ForSequenceClassification", "ForAudioClassification")):
            return self._classes(self._batch)
        if self._class.endswith("ForSemanticSegmentation"):
            return self._classes(self._batch, *self._sides(self._config))
        makes_text = ("LMHeadModel", "LM", "ForConditionalGeneration", "ForSpeechSeq2Seq")
        if self._class.endswith(makes_text) or self._main == "input_ids":
            return self._words() if self._number(self._text, "vocab_size") else None
        return None

    def _classes(self, *shape: int) -> Tensor:
        return torch.randint(max(1, self._number(self._config, "num_labels") or 1), shape)

    def _number(self, config: Any, *keys: str) -> int | None:
        for key in keys:
            value = getattr(config, key, None)
            if isinstance(value, int) and value > 0:
                return value
        return None
