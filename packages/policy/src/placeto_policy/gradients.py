"""Gradients that several processes have parts of."""

import math
from collections.abc import Iterable

import torch

from placeto_policy.errors import PolicyError
from placeto_policy.workers import Processes


def sum_gradients(
    parameters: Iterable[torch.nn.Parameter],
    number: float,
    processes: Processes,
    *,
    max_norm: float,
    when: str,
) -> tuple[float, float]:
    """Sum gradients over the processes, and scale the sum down where it is too long.

    Parameters
    ----------
    parameters
        Whose gradients they are; each gets the sum. One without a gradient has zeros.
    number
        A number that is summed with them.
    processes
        Which processes have parts of the sum.
    max_norm
        The length that the sum is scaled down to.
    when
        What is said of the time in an error, as in "update 3".

    Returns
    -------
    float, float
        The sum of the numbers, and the length of the gradient before it was scaled.

    Raises
    ------
    PolicyError
        When the sum is not finite.

    Examples
    --------
    >>> from placeto_policy.workers import OneProcess
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> sum_gradients([weight], 7.0, OneProcess(), max_norm=1.0, when="update 1")
    (7.0, 5.0)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    gradients = []
    for parameter in parameters:
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
    return float(flat[-1]), norm
