"""What `capture` is told of a step, checked once and passed whole to the tracer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.devices import AUTOCAST_DTYPES, TARGETS, Target
from placeto_capture.tracing.trace import UPDATES, Updates
from placeto_graphs import TokenCache

MODES = ("training", "inference")

LossFunction = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True, eq=False)
class TracingOptions:
    """How a step is traced, whatever it does; the fields are parameters of `capture`."""

    target: Target = "gpu"
    mask_fraction: float | None = None
    autocast: torch.dtype | None = None
    parameter_bytes: Mapping[str, int] | None = None
    experts_per_token: int = 1
    cache: TokenCache | None = None

    def __post_init__(self) -> None:
        _check_choice("target", self.target, TARGETS)
        if self.mask_fraction is not None and not 0 < self.mask_fraction <= 1:
            raise CaptureError(
                "mask_fraction: expected a number above 0 and up to 1, or None, "
                f"got {self.mask_fraction}"
            )
        if self.autocast is not None and self.autocast not in AUTOCAST_DTYPES:
            names = ", ".join(map(str, AUTOCAST_DTYPES))
            raise CaptureError(f"autocast: expected one of {names}, or None, got {self.autocast}")
        if self.experts_per_token < 1:
            raise CaptureError(
                f"experts_per_token: expected at least 1, got {self.experts_per_token}"
            )


@dataclass(frozen=True, eq=False)
class StepSpec(TracingOptions):
    """A step of a model: the parameters of `capture`, whose meaning and defaults they have.

    `capture_step` returns its graph.

    Raises
    ------
    CaptureError
        If the model is no module, or a choice or number is out of its range.

    Examples
    --------
    >>> from torch import nn
    >>> StepSpec(nn.Linear(4, 2), torch.ones(8, 4), mode="inference").updates
    'after-backward'
    """

    model: nn.Module
    example_inputs: Any
    loss_fn: LossFunction | None = None
    optimizer: OptimizerFactory | torch.optim.Optimizer | None = None
    mode: str = "training"
    updates: Updates = "after-backward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, nn.Module):
            raise CaptureError(
                f"model: expected a torch.nn.Module, got {type(self.model).__name__}"
            )
        _check_choice("mode", self.mode, MODES)
        _check_choice("updates", self.updates, UPDATES)
        if self.parameter_bytes and self.mode != "inference":
            raise CaptureError(
                "parameter_bytes: expected mode 'inference', as weights that are trained have the "
                f"width of their dtype, got {self.mode!r}"
            )


def _check_choice(name: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise CaptureError(f"{name}: expected one of {', '.join(choices)}, got {choice!r}")
