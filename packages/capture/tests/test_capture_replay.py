"""What capture records is what PyTorch runs: replayed on real tensors it gives the same."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import activation, batchnorm, instancenorm, loss, normalization

from capture_checks import check_parameter_bytes, check_replay, check_tensors, compared, comparison
from captured_models import CASES, Case, case
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.step_spec import OptimizerFactory, StepSpec
from replays import random_order, replay

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(
        torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "Adam": torch.optim.Adam,
    "Adam with amsgrad": partial(torch.optim.Adam, amsgrad=True, weight_decay=0.1),
    "AdamW": torch.optim.AdamW,
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("name", CASES)
def test_a_captured_step_is_what_pytorch_runs(name: str) -> None:
    step = comparison(name)
    check_replay(step)
    check_tensors(step)
    check_parameter_bytes(step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_as_in_pytorch(name: str) -> None:
    check_replay(compared(case("perceptron"), OPTIMIZERS[name]))


def test_an_optimizer_of_matrices_updates_as_in_pytorch() -> None:
    layers = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    check_replay(compared(Case(layers, (torch.randn(5, 3),)), torch.optim.Muon))


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_forward_pass_gives_what_pytorch_gives(name: str) -> None:
    example = case(name)
    trace = trace_step(StepSpec(example.model, example.inputs, mode="inference"))
    results = replay(trace, {}, order=random_order(op_graph_of(trace), seed=0))
    example.model.eval()
    with torch.no_grad():
        outputs = torch.utils._pytree.tree_leaves(example.model(*example.inputs))
    for index, output in enumerate(outputs):
        torch.testing.assert_close(results[f"output.{index}"], output)


# The ops of layers and losses of torch.nn are those that PyTorch runs, by name and bytes.


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

    def forward(self, first: torch.Tensor, *targets: Any) -> Any:
        return self.module(first * self.scale, *targets)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(("name", "in_place"), MODULES)
def test_layers_and_losses_run_the_ops_that_pytorch_runs(name: str, in_place: bool) -> None:
    inputs = CALLED_WITH.get(name, (SCORES, SCORES) if name in loss.__all__ else (IMAGES,))
    options = {"inplace": True} if in_place else {}
    module = getattr(nn, name)(*MADE_WITH.get(name, ()), **options)
    check_tensors(compared(Case(Scaled(module), inputs), torch.optim.SGD))
