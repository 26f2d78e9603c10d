"""The step of a PyTorch model as a graph of ops, the costs of its ops, and a form that runs.

- `capture`, `capture_step` and `capture_function` record a step as an ``OpGraph``.
- `cost_model` and `cost_models` estimate the time of each op on kinds of devices.
- `fused` joins the ops of a step of inference to the kernels that a server runs.
- `program_step` reads a model from a file.
- `executable_step`, `make_executable` and `executable_training` make a step that runs op by op.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from placeto_capture.costs.fusing import fused
from placeto_capture.costs.roofline import cost_model, cost_models
from placeto_capture.errors import CaptureError, CaptureWarning

if TYPE_CHECKING:
    from placeto_capture.executable.traced_step import executable_step, make_executable
    from placeto_capture.executable.training import ExecutableTraining, executable_training
    from placeto_capture.programs.step import program_step
    from placeto_capture.tracing.capture import capture, capture_function, capture_step
    from placeto_capture.tracing.devices import Target
    from placeto_capture.tracing.step_spec import StepSpec
    from placeto_capture.tracing.trace import Updates

__version__ = "0.3.0"

__all__ = [
    "CaptureError",
    "CaptureWarning",
    "ExecutableTraining",
    "StepSpec",
    "Target",
    "Updates",
    "capture",
    "capture_function",
    "capture_step",
    "cost_model",
    "cost_models",
    "executable_step",
    "executable_training",
    "fused",
    "make_executable",
    "program_step",
]
_MODULES = {
    "ExecutableTraining": "executable.training",
    "StepSpec": "tracing.step_spec",
    "Target": "tracing.devices",
    "Updates": "tracing.trace",
    "capture": "tracing.capture",
    "capture_function": "tracing.capture",
    "capture_step": "tracing.capture",
    "executable_step": "executable.traced_step",
    "executable_training": "executable.training",
    "make_executable": "executable.traced_step",
    "program_step": "programs.step",
}  # of the names that are imported when they are first used


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: costs need no PyTorch, which takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
