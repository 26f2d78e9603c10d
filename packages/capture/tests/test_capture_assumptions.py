"""What is assumed of unknown values: numbers are finite, choices are fair."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capture_checks import check_replay, compared
from captured_models import Case
from placeto_capture import CaptureError, capture

Function = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


class Asking(nn.Module):
    """A layer, and a function of it that asks for values."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer, inputs)


def clamps_infinities(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if torch.isinf(outputs).any() or torch.isnan(outputs).any():
        outputs = outputs.clamp(-1.0, 1.0)
    if not torch.isfinite(outputs).all():
        outputs = outputs.clamp(-1.0, 1.0)
    return outputs


def raises_if_large(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = layer(inputs)
    if (outputs > 1e6).any():
        raise ValueError
    return outputs


def test_numbers_are_finite_as_when_the_step_runs() -> None:
    check_replay(compared(Case(Asking(clamps_infinities), (torch.randn(3, 4),))))


def test_other_decisions_are_refused_with_their_line() -> None:
    line = raises_if_large.__code__.co_firstlineno + 2
    with pytest.raises(CaptureError, match=rf"tensors \(line {line} of test_capture_assumptions"):
        capture(Asking(raises_if_large), torch.randn(3, 4))


def by_argmax(scores: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1]).bool()


def by_top_k(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores).scatter(1, scores.topk(2, dim=1).indices, 1.0) > 0


def by_maximum(scores: torch.Tensor) -> torch.Tensor:
    return torch.arange(scores.shape[1]) == scores.max(1).indices[:, None]


Choice = Callable[[torch.Tensor], torch.Tensor]
CHOICES: dict[Choice, int] = {by_argmax: 1, by_top_k: 2, by_maximum: 1}


class LoopOverExperts(nn.Module):
    """Each row goes to the experts that its scores choose, one expert after the other."""

    def __init__(self, choose: Choice, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(4, num_experts)
        self.experts = nn.ModuleDict({f"expert_{n}": nn.Linear(4, 4) for n in range(num_experts)})
        self.choose = choose

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores = self.router(rows).softmax(1)
        chosen = self.choose(scores)
        result = torch.zeros_like(rows)
        for expert in chosen.any(0).nonzero()[:, 0]:
            (found,) = torch.where(chosen[:, expert])
            outputs = self.experts[f"expert_{int(expert)}"](rows[found])
            result.index_add_(0, found, outputs * scores[found, expert, None])
        return result


@settings(max_examples=15, deadline=None)
@given(choose=st.sampled_from(list(CHOICES)), rows=st.integers(1, 30), experts=st.integers(3, 6))
def test_each_row_goes_to_as_many_experts_as_it_chooses(
    choose: Choice, rows: int, experts: int
) -> None:
    graph = capture(LoopOverExperts(choose, experts), torch.ones(rows, 4), mode="inference")
    products = [
        flops
        for name, flops in zip(graph.op_names, graph.flops.tolist(), strict=True)
        if "expert" in name and "addmm" in name
    ]
    assert sum(products) == rows * CHOICES[choose] * 2 * 4 * 4


def test_what_overwrites_a_constant_is_no_longer_known() -> None:
    def overwrite(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        limit = torch.zeros(3)
        if limit.sum() > 0:
            return inputs
        limit.copy_(layer(inputs)[0, :3].detach())
        outputs: torch.Tensor = layer(inputs) * limit.sum().item()
        return outputs

    with pytest.raises(CaptureError, match="asks for the value of a tensor"):
        capture(Asking(overwrite), torch.randn(3, 4))


def test_a_conversion_that_changes_nothing_is_nothing() -> None:
    def convert(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = layer.to(torch.float32).to(inputs.device)(inputs)
        return outputs

    given = Case(Asking(convert), (torch.randn(3, 4),))
    before = nn.Module._apply
    check_replay(compared(given))
    assert nn.Module._apply is before


def test_a_conversion_of_weights_is_refused() -> None:
    def convert(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = layer.to(torch.float64)(inputs.double())
        return outputs

    with pytest.raises(CaptureError) as caught:
        capture(Asking(convert), torch.randn(3, 4))
    assert str(caught.value).startswith(
        "Linear.weight: expected a weight that stays as it is during a step, got one that is "
        "converted; convert the model before (line "
    )
