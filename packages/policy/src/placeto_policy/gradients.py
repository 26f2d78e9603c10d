"""Steps of an optimizer by gradients that are summed over processes."""

import math

import torch

from placeto_policy.errors import PolicyError
from placeto_policy.workers import Processes


def take_step(
    optimizer: torch.optim.Optimizer,
    number: float,
    processes: Processes,
    *,
    learning_rate: float,
    max_norm: float,
    when: str,
) -> tuple[float, float]:
    """Sum gradients over the processes, scale the sum down if it is too long, and take a step.

    Parameters
    ----------
    optimizer
        Optimizer of all parameters; one without a gradient has zeros.
    number
        Number that is summed with them.
    processes
        Processes that have parts of the sum.
    learning_rate
        Learning rate of the step.
    max_norm
        Norm to which a longer sum is scaled down.
    when
        Text for the time in an error, such as "update 3".

    Returns
    -------
    float, float
        Sum of the numbers, and norm of the gradient before it was scaled.

    Raises
    ------
    PolicyError
        When the sum is not finite: no step is taken.

    Examples
    --------
    >>> from placeto_policy.workers import OneProcess
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> descent = torch.optim.SGD([weight])
    >>> take_step(descent, 7.0, OneProcess(), learning_rate=0.1, max_norm=1.0, when="update 1")
    (7.0, 5.0)
    >>> weight.detach()
    tensor([-0.0600, -0.0800])
    """
    (group,) = optimizer.param_groups
    gradients = []
    for parameter in group["params"]:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([number])])
    processes.sum(flat)
    norm = float(flat[:-1].norm())
    if not math.isfinite(norm):
        raise PolicyError(f"gradient: expected finite numbers at {when}, got norm {norm}")
    flat[:-1] *= min(1.0, max_norm / max(norm, 1e-12))
    parts = torch.split(flat[:-1], [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
    return float(flat[-1]), norm
