"""Functions of a layer and its inputs that ask for values of activations."""

from collections.abc import Callable

import torch
from torch import nn

Function = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


def raises_if(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if (outputs > 1e6).any():
        message = "too large"
        raise ValueError(message)
    return outputs


def raises_if_not(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if not (outputs < 1e6).all():
        raise ValueError
    return outputs


def raises_otherwise(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    if (inputs < 1e6).all().item():
        outputs: torch.Tensor = layer(inputs)
    else:
        raise ValueError
    return outputs


def raises_in_the_second_case(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    if inputs.dim() == 1:
        return inputs
    elif bool((inputs > 1e6).any()):  # noqa: RET505 (a chain of tests is what is tested)
        raise ValueError
    outputs: torch.Tensor = layer(inputs)
    return outputs


def raises_if_several(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if (outputs > 1e6).any() or not (
        (outputs < 1e6).all() and (outputs.abs() < 1e6).all() and len(outputs) > 1
    ):
        raise ValueError
    return outputs


def asserts(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    assert not (outputs > 1e6).any(), "too large"
    assert (outputs < 1e6).all()
    return outputs


def checks_a_distribution(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    spread = torch.distributions.Normal(outputs, outputs.exp(), validate_args=True)
    entropy: torch.Tensor = spread.entropy()  # type: ignore[no-untyped-call]
    return entropy


def clamps_infinities(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if torch.isinf(outputs).any() or torch.isnan(outputs).any():
        outputs = outputs.clamp(-1.0, 1.0)
    if not torch.isfinite(outputs).all():
        outputs = outputs.clamp(-1.0, 1.0)
    return outputs


def clamps_if_large(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if (outputs > 1e6).any():
        outputs = outputs.clamp(-1.0, 1.0)
    return outputs


def raises_by_a_number(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if outputs.max().item() > 1e6:
        raise ValueError
    return outputs


PASSING: tuple[Function, ...] = (
    raises_if,
    raises_if_not,
    raises_otherwise,
    raises_in_the_second_case,
    raises_if_several,
    asserts,
    checks_a_distribution,
    clamps_infinities,
)
REFUSED: tuple[Function, ...] = (clamps_if_large, raises_by_a_number)
