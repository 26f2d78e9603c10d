"""Results that calls share: a step is as it is where each call runs, and each weight steps."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from captured_models import CASES, case
from placeto_capture.tracing import step_phases
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.step_spec import StepSpec
from placeto_capture.tracing.trace import Trace
from placeto_capture.tracing.tracer import Tracer

optim = torch.optim


def run_each_call(patches: pytest.MonkeyPatch) -> None:
    """Let a tracer forget results, and let the state of each weight be made by a step of it."""
    patches.setattr(Tracer, "results", property(lambda _: {}, lambda _, __: None), raising=False)
    patches.setattr(step_phases, "alike_weights_share_a_step", nullcontext)


def assert_equal_steps(first: Trace, second: Trace) -> None:
    assert first.calls == second.calls
    assert [(op.name, op.tensors, op.state) for op in first.placeholders] == [
        (op.name, op.tensors, op.state) for op in second.placeholders
    ]
    assert first.storage_bytes == second.storage_bytes
    assert first.held_storages == second.held_storages
    assert first.deaths == second.deaths


@pytest.mark.parametrize("target", ["gpu", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_calls_that_are_alike_share_what_each_returns_and_costs(
    name: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = StepSpec(case(name).model, case(name).inputs, target=target)
    shared = trace_step(step)
    run_each_call(monkeypatch)
    assert_equal_steps(shared, trace_step(step))


def squared_once(weights: Any) -> optim.Optimizer:
    """Return an optimizer of a user's own, whose first weight alone has a state."""

    class Own(optim.SGD):
        def step(self, _closure: Any = None) -> Any:
            weights = self.param_groups[0]["params"]
            state = self.state[weights[0]]
            state.setdefault("scale", weights[0].new_zeros(1))
            with torch.no_grad():
                for weight in weights:
                    if weight.grad is not None:
                        state["scale"].add_(weight.grad.square().sum())
                        weight.sub_(weight.grad / state["scale"])

    return Own(weights)


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.ASGD,
        optim.Adadelta,
        optim.Adafactor,
        partial(optim.Adam, amsgrad=True),
        partial(optim.AdamW, fused=True),
        partial(optim.Adagrad, foreach=False),
        optim.NAdam,
        optim.Rprop,
        partial(optim.SGD, momentum=0.9),
        squared_once,
    ],
)
def test_weights_of_one_shape_share_the_step_that_makes_their_state(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 4))
    model[2].requires_grad_(False)
    step = StepSpec(model, torch.ones(5, 6), optimizer=optimizer)
    shared = trace_step(step)
    run_each_call(monkeypatch)
    assert_equal_steps(shared, trace_step(step))
    assert shared.placeholders[0].state
