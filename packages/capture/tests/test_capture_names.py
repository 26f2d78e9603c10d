"""The ops of layers and losses of torch.nn are those that PyTorch runs, by name and bytes."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import activation, batchnorm, instancenorm, loss, normalization

from capture_checks import check_tensors, compared
from captured_models import Case

WIDTH = 6
IMAGES = torch.rand(2, 4, WIDTH, WIDTH)
SCORES, CLASSES = torch.rand(2, 4), torch.tensor([1, 3])
# What a module is made with, and is called with, where that is not nothing and images or scores.
MADE_WITH: dict[str, tuple[Any, ...]] = {
    "Threshold": (0.1, 20.0),
    "MultiheadAttention": (WIDTH, 2),
    "LocalResponseNorm": (2,),
    "GroupNorm": (2, 4),
    "LinearCrossEntropyLoss": (4, 4),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), (WIDTH,)),
    **dict.fromkeys(("Softmin", "Softmax", "LogSoftmax"), (-1,)),
    **{f"{kind}Norm{dim}d": (4,) for kind in ("Batch", "Instance") for dim in (1, 2, 3)},
}
CALLED_WITH: dict[str, tuple[Any, ...]] = {
    "MultiheadAttention": (IMAGES[0],) * 3,
    **{f"{kind}Norm1d": (IMAGES[..., 0],) for kind in ("Batch", "Instance")},
    **{f"{kind}Norm3d": (IMAGES[..., None],) for kind in ("Batch", "Instance")},
    **dict.fromkeys(
        ("NLLLoss", "CrossEntropyLoss", "MultiMarginLoss", "LinearCrossEntropyLoss"),
        (SCORES, CLASSES),
    ),
    "MultiLabelMarginLoss": (SCORES, SCORES.long()),
    "CosineEmbeddingLoss": (SCORES, SCORES, CLASSES),
    "MarginRankingLoss": (SCORES, SCORES, SCORES),
    **dict.fromkeys(("TripletMarginLoss", "TripletMarginWithDistanceLoss"), (SCORES,) * 3),
    "CTCLoss": (SCORES.repeat(5, 1), CLASSES, torch.tensor(10), torch.tensor(2)),
}
# Lazy ones are others as soon as they are called; one needs several processes; one is another with
# a warning; and one keeps what it has computed. A variance is looked at, which capture refuses.
LEFT_OUT = "Lazy", "Sync", "NLLLoss2d", "CrossMapLRN2d", "GaussianNLLLoss"
MODULES = [
    (name, in_place)
    for file in (activation, batchnorm, instancenorm, loss, normalization)
    for name in file.__all__
    if hasattr(nn, name) and not name.startswith(LEFT_OUT)
    for in_place in (False, True)
    if not in_place or "inplace" in inspect.signature(getattr(nn, name)).parameters
]


class Scaled(nn.Module):
    """A module whose first input is learned."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.scale, self.module = nn.Parameter(torch.ones(())), module

    def forward(self, first: torch.Tensor, *others: Any) -> Any:
        return self.module(first * self.scale, *others)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(("name", "in_place"), MODULES)
def test_layers_and_losses_run_the_ops_that_pytorch_runs(name: str, in_place: bool) -> None:
    inputs = CALLED_WITH.get(name, (SCORES, SCORES) if name in loss.__all__ else (IMAGES,))
    given = {"inplace": True} if in_place else {}
    module = getattr(nn, name)(*MADE_WITH.get(name, ()), **given)
    check_tensors(compared(Case(Scaled(module), inputs), torch.optim.SGD))
