"""What capture records is what PyTorch runs: replayed on real tensors it gives the same."""

from functools import partial

import pytest
import torch
from torch import nn

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
    for number, output in enumerate(outputs):
        torch.testing.assert_close(results[f"output.{number}"], output)
