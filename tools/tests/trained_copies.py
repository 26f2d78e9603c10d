"""A model, a loss and batches that copies train with; each process writes what it has summed."""

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

STEPS = 2
losses: list[Tensor] = []  # sums over the samples of a micro-batch
steps: list[tuple[Tensor, dict[str, Tensor]]] = []


class Layers(nn.Module):
    """Layers one behind the other, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 8)

    def forward(self, features: Tensor) -> Tensor:
        for layer in self.layers:
            features = features + torch.tanh(layer(features))
        result: Tensor = self.head(features)
        return result


def make_model() -> nn.Module:
    """Return a model."""
    return Layers()


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a mean over samples."""
    loss = (outputs - targets).square().mean()
    losses.append(loss.detach() * len(outputs))
    return loss


def _batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 8, generator=generator), torch.randn(16, 8, generator=generator))
        for _ in range(STEPS)
    ]


batches = _batches()


def _write(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Keep what an optimizer is about to read."""
    (group,) = optimizer.param_groups
    gradients = {}
    for name, weight in zip(group["param_names"], group["params"], strict=True):
        gradient = weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
        gradients[name.removeprefix("module.")] = gradient.clone()
    steps.append((sum(losses, torch.zeros(())), gradients))
    losses.clear()
    has_losses = bool(steps[0][0])
    results = {
        "losses": [loss for loss, _ in steps] if has_losses else [],
        "gradients": [of_step for _, of_step in steps],
    }
    torch.save(results, f"rank{os.environ['RANK']}.pt")


if "RANK" in os.environ:
    register_optimizer_step_pre_hook(_write)
