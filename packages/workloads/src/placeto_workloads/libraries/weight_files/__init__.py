"""Headers of files of weights: the configuration of a model, and the bytes of each parameter.

Only headers are read, never the weights behind them. Begin to read in `stored_model`.
"""

from pathlib import Path

from placeto_workloads.libraries.weight_files.gguf_model import GgufModel
from placeto_workloads.libraries.weight_files.safetensors_model import INDEX, SafetensorsModel
from placeto_workloads.libraries.weight_files.stored import StoredModel


def stored_model(path: str) -> StoredModel | None:
    """Return the model that is in a file of weights, or in a folder; None if it is neither."""
    if path.endswith(".gguf"):
        return GgufModel(Path(path))
    if path.endswith((".safetensors", INDEX)) or Path(path).is_dir():
        return SafetensorsModel(Path(path))
    return None
