"""From a file that says what a model computes to a training step."""

import os
from pathlib import Path

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.training_step import TrainingStep
from placeto_workloads.programs.exported import exported_step


def program_step(path: str | os.PathLike[str], **sizes: int) -> TrainingStep:
    """Build a training step of a model that was written to a file.

    Nothing in the file is executed or unpickled, and its weights are not read: shapes are enough.

    Parameters
    ----------
    path
        An exported program (``.pt2``, of `torch.export.save`) or an ONNX file (``.onnx``).
    **sizes
        The dimensions that the file leaves open: ``batch_size`` is the first one of the first
        input; those of an ONNX file may be given by their names.

    Raises
    ------
    WorkloadError
        When it is no such file, is damaged, or computes what this package does not know.
    OSError
        When it cannot be read.

    Examples
    --------
    >>> program_step("model.safetensors")
    Traceback (most recent call last):
    ...
    placeto_workloads.errors.WorkloadError: model.safetensors: expected a file that ends in .pt2 \
or .onnx
    """
    if Path(path).suffix == ".pt2":
        return exported_step(path, **sizes)
    if Path(path).suffix == ".onnx":
        from placeto_workloads.programs.onnx_file import onnx_step  # noqa: PLC0415 (needs an extra)

        return onnx_step(path, **sizes)
    raise WorkloadError(f"{path}: expected a file that ends in .pt2 or .onnx")
