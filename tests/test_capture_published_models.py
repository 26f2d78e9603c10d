"""The models of this package, at small sizes: their captures are what PyTorch runs."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from capture_checks import check_parameter_bytes, check_replay, check_tensors, compared
from captured_models import Case
from placeto_graphs import OpGraph
from placeto_workloads import TrainingStep, family, family_names, training_step

STEPS: dict[str, dict[str, int]] = {
    "inception-v3": {"batch_size": 2, "image_size": 75},
    "nasnet": {"batch_size": 2, "image_size": 32, "cells_per_stage": 1},
    "nmt-2": {"steps": 3, "batch_size": 4, "units": 6, "vocabulary_size": 9},
    "ptb": {"batch_size": 2, "steps": 4, "units": 4, "vocabulary_size": 10},
    "cifar10": {"batch_size": 2, "image_size": 8, "filters": 4, "cells_per_stage": 1},
}


def small_step(name: str) -> TrainingStep:
    """Return the step of a model, or of the first graph of a family, at small sizes."""
    if name not in family_names():
        return training_step(name, **STEPS[name], device="cpu", seed=0)
    member = family(name).training[0]
    small = replace(member, sizes={**member.sizes, **STEPS[name]})
    return small.training_step(device="cpu", seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_captured_step_is_what_pytorch_runs(name: str) -> None:
    small = small_step(name)
    assert small.loss_fn is None
    # Adam would divide the rounding errors of gradients that are zero by themselves.
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    step = compared(Case(small.model, small.example_inputs), optimizer)
    check_replay(step, num_orders=1)
    check_tensors(step)
    check_parameter_bytes(step)
    check_names(step.graph, small.model)


def check_names(graph: OpGraph, model: nn.Module) -> None:
    """Check that all parameters are ops, and that scopes are modules, which time steps all have."""
    parameters = {
        op for op, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == "parameter"
    }
    assert parameters == {name for name, _ in model.named_parameters()}
    paths = {path for path, _ in model.named_modules()}
    assert set(graph.scopes) <= {*paths, "loss", "optimizer"}
    assert {path for path in paths if "step" in path} <= set(graph.scopes)
