"""Checked tensors of files of trainings and of runs, and those of Adam."""

from collections.abc import Callable

import torch
from torch import nn

from placeto_policy.errors import PolicyError

AVERAGES = ("exp_avg", "exp_avg_sq")  # of Adam, for each parameter


def check_like(name: str, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor if it has the shape and type of another one, and is finite.

    Examples
    --------
    >>> check_like("weight", torch.ones(2), torch.zeros(2))
    tensor([1., 1.])
    """
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise PolicyError(
            f"{name}: expected {like.dtype} of shape {tuple(like.shape)}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise PolicyError(f"{name}: expected finite numbers, got others")
    return tensor


def adam_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the averages that Adam keeps of the gradients of a module, by name."""
    return {
        f"adam.{average}.{name}": optimizer.state[parameter][average]
        for name, parameter in module.named_parameters()
        if parameter in optimizer.state
        for average in AVERAGES
    }


def restore_adam(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    tensor_of: Callable[[str, torch.Tensor], torch.Tensor],
) -> None:
    """Restore the averages of Adam."""
    for name, parameter in module.named_parameters() if steps else ():
        averages = {
            average: tensor_of(f"adam.{average}.{name}", parameter).clone() for average in AVERAGES
        }
        optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **averages}
