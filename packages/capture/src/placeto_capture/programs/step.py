"""From a file that says what a model computes to a training step."""

import os
from pathlib import Path

from placeto_capture.errors import CaptureError
from placeto_capture.programs.exported import exported_step
from placeto_capture.programs.program_module import ProgramStep


def program_step(path: str | os.PathLike[str], **sizes: int) -> ProgramStep:
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
    CaptureError
        When it is no such file, is damaged, or computes what this package does not know.
    OSError
        When it cannot be read.

    Examples
    --------
    >>> program_step("model.safetensors")
    Traceback (most recent call last):
    ...
    placeto_capture.errors.CaptureError: model.safetensors: expected a file that ends in .pt2 \
or .onnx
    """
    if Path(path).suffix == ".pt2":
        return exported_step(path, **sizes)
    if Path(path).suffix == ".onnx":
        from placeto_capture.programs.onnx_file import onnx_step  # noqa: PLC0415 (needs an extra)

        return onnx_step(path, **sizes)
    raise CaptureError(f"{path}: expected a file that ends in .pt2 or .onnx")
