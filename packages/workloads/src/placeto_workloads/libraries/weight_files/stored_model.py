"""A model in files of weights that a user has, by the path of one of them or of their folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from placeto_workloads.libraries.weight_files.gguf_model import GgufModel
from placeto_workloads.libraries.weight_files.safetensors_model import INDEX, SafetensorsModel


class StoredModel(Protocol):
    """A model in files of weights: its configuration, and the bytes of its parameters there."""

    config: dict[str, Any]

    def parameter_bytes(self, model: nn.Module) -> Mapping[str, int]:
        """Return the bytes of each parameter of the model that is built of the configuration."""


def stored_model(path: str) -> StoredModel | None:
    """Return the model that is in a file of weights, or in a folder; None if it is neither.

    Raises
    ------
    WorkloadError
        When it cannot be read, or there is no configuration.
    """
    if path.endswith(".gguf"):
        return GgufModel(Path(path))
    if path.endswith((".safetensors", INDEX)) or Path(path).is_dir():
        return SafetensorsModel(Path(path))
    return None
