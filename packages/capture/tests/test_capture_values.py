"""Steps that ask for values: of what is known beforehand, and how many elements a mask picks."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from capture_checks import check_replay, compared
from captured_models import Case
from placeto_capture import CaptureError, capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec

Function = Callable[["Deciding", torch.Tensor], torch.Tensor]


class Deciding(nn.Module):
    """A layer, and a function of it that asks for values."""

    numbers: torch.Tensor

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.register_buffer("numbers", torch.tensor([1, 2, 3]))
        self.constant = torch.tensor([0.5, 2.0])
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, inputs)


def example(function: Function) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Case(Deciding(function), (torch.rand(6, 4),))


def after_a_write(model: Deciding, x: torch.Tensor) -> torch.Tensor:
    rates = torch.zeros(3)
    rates[1] = 2.0
    rates.mul_(2)
    result: torch.Tensor = model.layer(x) * rates[1].item()
    return result


def by_a_random_number(model: Deciding, x: torch.Tensor) -> torch.Tensor:
    for layer in (model.layer, model.other):
        x = layer(x) if torch.rand([]) < 0.5 else x * 2
    return x + 0 * (model.layer.weight.sum() + model.other.weight.sum())


KNOWN: dict[str, Function] = {
    "an element of a constant": lambda m, x: m.layer(x) * torch.tensor([1, 2, 3])[1].item(),
    "a schedule": lambda m, x: m.layer(x) * [r.item() for r in torch.linspace(0, 1, 5)][2],
    "an attribute": lambda m, x: m.layer(x) * m.constant.prod().item(),
    "after a write": after_a_write,
    "an if": lambda m, x: m.layer(x) if m.numbers[0] > 0 else m.other(m.layer(x)),
    "a mask of positions": lambda m, x: m.layer(x)[torch.arange(6) % 3 == 1],
    "a condition that is no tensor": lambda m, x: torch.cond(
        False, lambda y: m.other(m.layer(y)), m.layer, (x,)
    ),
    "random numbers": by_a_random_number,
}


@pytest.mark.parametrize("name", KNOWN)
def test_values_that_follow_from_constants_are_known(name: str) -> None:
    step = compared(example(KNOWN[name]))
    if name != "random numbers":
        check_replay(step)


def test_whole_numbers_of_inputs_are_known_and_measured_ones_are_not() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x[: int(length.max())])
            return result

    inputs = torch.rand(6, 4), torch.tensor([2, 3])
    check_replay(compared(Case(Cut(), inputs)))
    for unknown in (torch.tensor([2.0, 3.0]), inputs[1].to("meta")):
        with pytest.raises(CaptureError, match="asks for the value of a tensor"):
            capture(Cut(), (inputs[0], unknown))


def test_weights_do_not_decide() -> None:
    given = example(lambda m, x: m.layer(x) if m.layer.weight.sum() > 0 else x)
    with pytest.raises(CaptureError, match="asks for the value of a tensor"):
        capture(given.model, given.inputs)


def test_distributions_of_unknown_values_are_taken_as_valid() -> None:
    def sample(model: Deciding, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = model.layer(x)
        return torch.distributions.Normal(hidden, hidden.exp()).rsample()

    torch.distributions.Distribution.set_default_validate_args(True)  # the compiler sets it
    given = example(sample)
    assert "aten.exp" in capture(given.model, given.inputs).op_types
    with pytest.raises(ValueError, match="Expected parameter scale"):  # is checked again outside
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))


MASKS: dict[str, Function] = {
    "elements": lambda m, x: m.layer(x)[x >= 0],
    "rows": lambda m, x: m.layer(x)[(x >= 0).all(1)],
    "nonzero": lambda m, x: m.layer(x)[(x >= 0).all(1).nonzero(as_tuple=True)],
    "masked_select": lambda m, x: m.layer(x).masked_select(x >= 0),
    "broadcast": lambda m, x: m.layer(x).masked_select((x >= 0).all(1, keepdim=True)),
    "unique": lambda m, x: m.layer(x) * torch.unique(x).sum(),
    "unique_consecutive": lambda m, x: m.layer(x) * torch.unique_consecutive(x).sum(),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_pick_everything_are_the_upper_bound(name: str) -> None:
    check_replay(compared(example(MASKS[name]), mask_fraction=1.0))
    with pytest.raises(CaptureError, match="or say with mask_fraction which part"):
        capture(*vars(example(MASKS[name])).values())


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_picks_its_part(name: str) -> None:
    given = example(MASKS[name])
    whole, half = (capture(given.model, given.inputs, mask_fraction=f) for f in (1.0, 0.5))
    assert Counter(half.op_types) == Counter(whole.op_types)
    assert half.tensor_bytes.sum() < whole.tensor_bytes.sum()
    rows = example(MASKS["rows"])
    trace = trace_step(StepSpec(rows.model, rows.inputs, mode="inference", mask_fraction=0.5))
    assert trace.results["output.0"].size == (3, 4)


class Experts(nn.Module):
    """Each row goes to one of three experts, rows of one expert side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 8, 16) / 4)
        self.second = nn.Parameter(torch.randn(3, 16, 8) / 4)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        hidden = torch._grouped_mm(x, self.first, offs=ends).relu()
        return torch._grouped_mm(hidden, self.second, offs=ends)


def test_products_of_experts_count_each_row_once() -> None:
    given = Case(Experts(), (torch.randn(6, 8), torch.tensor([1, 4, 6], dtype=torch.int32)))
    step = compared(given)
    check_replay(step)
    products = [kind == "aten._grouped_mm" for kind in step.graph.op_types]
    assert step.graph.flops[products].tolist() == [2 * 6 * 8 * 16] * 5  # inputs have no gradient
