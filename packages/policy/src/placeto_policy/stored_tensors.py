"""What files of trainings and of runs have in common: tensors that are checked, and Adam's."""

from collections.abc import Callable

import torch
from torch import nn

from placeto_policy.errors import PolicyError

AVERAGES = ("exp_avg", "exp_avg_sq")  # of Adam, for each parameter


def check_like(name: str, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor if it is of the shape and type of another one, and finite.

    Parameters
    ----------
    name
        What it is called in an error.
    tensor, like
        The two.

    Raises
    ------
    PolicyError
        When it is not.

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
    """Return the averages that Adam keeps of the gradients of a module, by name.

    Parameters
    ----------
    module
        What is trained.
    optimizer
        What trains it. Before its first step it keeps nothing.
    """
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
    """Give Adam its averages back.

    Parameters
    ----------
    module, optimizer
        As for `adam_tensors`.
    steps
        How many steps it has made; before the first one there is nothing to give back.
    tensor_of
        Returns the tensor of a name, checked to be like another one.
    """
    for name, parameter in module.named_parameters() if steps else ():
        averages = {
            average: tensor_of(f"adam.{average}.{name}", parameter).clone() for average in AVERAGES
        }
        optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **averages}
