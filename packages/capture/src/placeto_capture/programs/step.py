"""From a file that says what a model computes to a step of it."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from placeto_capture.errors import CaptureError
from placeto_graphs import error_line


class ProgramStep(NamedTuple):
    """A model that was read from a file, in training mode, and its arguments or keywords."""

    model: nn.Module
    example_inputs: Any


def program_step(
    path: str | os.PathLike[str], /, *, trust: bool = False, **sizes: int
) -> ProgramStep:
    """Build a step of a model that was written to a file.

    Nothing in an ONNX file is executed, and its weights are not read: shapes are enough. An
    exported program can run code of its own when it is loaded.

    Parameters
    ----------
    path
        ONNX file (``.onnx``) or exported program (``.pt2``, of `torch.export.save`).
    trust
        Permission for code in the file to run; without it an exported program is refused.
    **sizes
        Dimensions that an ONNX file leaves open, by their names; ``batch_size`` is the first one of
        its first input. An exported program has the sizes of its example inputs.

    Raises
    ------
    CaptureError
        If the file is of another kind, damaged or not trusted, leaves other dimensions open, or
        computes what this package does not know.
    OSError
        If it cannot be read.
    """
    suffix = Path(path).suffix
    if suffix == ".pt2":
        # What reads it takes seconds to import.
        from placeto_capture.programs.exported import exported_step  # noqa: PLC0415

        step = exported_step(path, trust=trust)
        for name in sizes:
            raise CaptureError(
                f"{name}: expected no sizes for {path}, whose example inputs have them; export "
                "the program again for others"
            )
        return step
    if suffix == ".onnx":
        try:
            from placeto_capture.programs.onnx_file import onnx_step  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise CaptureError(
                f"onnx: expected it to be installed, got {error_line(error)}: "
                "pip install 'placeto-capture[onnx]'"
            ) from error
        return onnx_step(path, **sizes)
    raise CaptureError(f"{path}: expected a file that ends in .pt2 or .onnx")
