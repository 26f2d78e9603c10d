"""Steps that ask for values: known ones, assumed ones, and how many elements a mask picks."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from capture_checks import check_replay, compared
from captured_models import Case, Net
from placeto_capture import CaptureError, capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec

Function = Callable[[Any, torch.Tensor], torch.Tensor]


def example(function: Function) -> Case:
    """Return two layers, a buffer and a constant, and a function of them that asks for values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = {"layer": nn.Linear(4, 4), "other": nn.Linear(4, 4)}
        constants = {"numbers": torch.tensor([1, 2, 3]), "kept": torch.tensor([0.5, 2.0])}
        return Case(Net(function, **layers, **constants), (torch.rand(6, 4),))


def after_a_write(model: Any, x: torch.Tensor) -> torch.Tensor:
    rates = torch.zeros(3)
    rates[1] = 2.0
    rates.mul_(2)
    result: torch.Tensor = model.layer(x) * rates[1].item()
    return result


def by_a_random_number(model: Any, x: torch.Tensor) -> Any:
    for layer in (model.layer, model.other):
        x = layer(x) if torch.rand([]) < 0.5 else x * 2
    return x + 0 * (model.layer.weight.sum() + model.other.weight.sum())


def clamps_infinities(model: Any, x: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = model.layer(x)
    if torch.isinf(outputs).any() or torch.isnan(outputs).any():
        outputs = outputs.clamp(-1.0, 1.0)
    if not torch.isfinite(outputs).all():
        outputs = outputs.clamp(-1.0, 1.0)
    return outputs


KNOWN: dict[str, Function] = {
    "an element of a constant": lambda m, x: m.layer(x) * torch.tensor([1, 2, 3])[1].item(),
    "a schedule": lambda m, x: m.layer(x) * [r.item() for r in torch.linspace(0, 1, 5)][2],
    "an attribute": lambda m, x: m.layer(x) * m.kept.prod().item(),
    "after a write": after_a_write,
    "an if": lambda m, x: m.layer(x) if m.numbers[0] > 0 else m.other(m.layer(x)),
    "a mask of positions": lambda m, x: m.layer(x)[torch.arange(6) % 3 == 1],
    "a condition that is no tensor": lambda m, x: torch.cond(
        False, lambda y: m.other(m.layer(y)), m.layer, (x,)
    ),
    "random numbers": by_a_random_number,
    "numbers are finite": clamps_infinities,
    "a size that is told": lambda m, x: m.layer(x).repeat_interleave(
        x.sum(1).long().clamp(2, 2), 0, output_size=12
    ),
    "gradients of each sample": lambda m, x: torch.vmap(
        torch.func.grad(lambda row: m.layer(row).square().sum())
    )(x),
    "a conversion to the same": lambda m, x: m.layer.to(torch.float32).to(x.device)(x),
}


@pytest.mark.parametrize("name", KNOWN)
def test_values_that_follow_from_constants_are_known(name: str) -> None:
    step = compared(example(KNOWN[name]))
    if name != "random numbers":
        check_replay(step)


class Careful(torch.optim.Adagrad):
    def step(self, closure: Any = None) -> Any:
        """Update weights whose gradients are finite numbers."""
        weights = [weight for weight in self.param_groups[0]["params"] if weight.grad is not None]
        if any(torch.isinf(weight.grad).any() for weight in weights):
            return None
        return super().step(closure)


def test_layers_that_are_left_out_by_chance_are_the_same_each_time() -> None:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(16):
            is_first = random.random() < np.random.rand()  # noqa: NPY002, S311
            x = (model.layer if is_first else model.other)(x)
        return x

    model, graphs = example(forward).model, []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        graphs.append(capture(model, torch.ones(2, 4)))
    assert graphs[0] == graphs[1]


def test_an_optimizer_that_looks_for_infinities_finds_none() -> None:
    step = compared(example(KNOWN["a size that is told"]), Careful)
    assert "placeto.update" in step.graph.op_types
    check_replay(step)


def test_whole_numbers_of_inputs_are_known_and_measured_ones_are_not() -> None:
    def cut(model: Any, x: torch.Tensor, length: torch.Tensor) -> Any:
        return model.layer(x[: int(length.max())])

    model = Net(cut, layer=nn.Linear(4, 4))
    inputs = torch.rand(6, 4), torch.tensor([2, 3])
    check_replay(compared(Case(model, inputs)))
    for unknown in (torch.tensor([2.0, 3.0]), inputs[1].to("meta")):
        with pytest.raises(CaptureError, match=VALUE):
            capture(model, (inputs[0], unknown))


def raises_if_large(model: Any, x: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = model.layer(x)
    if (outputs > 1e6).any():
        raise ValueError
    return outputs


def overwrites_a_constant(model: Any, x: torch.Tensor) -> torch.Tensor:
    limit = torch.zeros(3)
    if limit.sum() > 0:
        return x
    limit.copy_(model.layer(x)[0, :3].detach())
    outputs: torch.Tensor = model.layer(x) * limit.sum().item()
    return outputs


VALUE = "asks for the value of a tensor"
LINE = raises_if_large.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: m.layer(x) if m.layer.weight.sum() > 0 else x, VALUE),
        (raises_if_large, rf"{VALUE}.* \(line {LINE} of test_capture_values"),
        (overwrites_a_constant, VALUE),
        (lambda m, x: m.layer(x) * torch.ones(2**24 + 1).sum().item(), VALUE),  # too much work
        (lambda m, x: m.layer(x).repeat_interleave(x.sum(1).long(), 0), "or take .* output_size"),
        (lambda m, x: m.layer(x) * torch.bincount(x.sum(1).long()).sum(), "or take a function"),
        (
            lambda m, x: m.layer.to(torch.float64)(x.double()),
            r"^Linear\.weight: expected a weight that stays as it is .*; convert the model before",
        ),
    ],
)
def test_other_decisions_and_conversions_of_weights_are_refused(
    function: Function, message: str
) -> None:
    apply = nn.Module._apply
    case = example(function)
    with pytest.raises(CaptureError, match=message):
        capture(case.model, case.inputs)
    assert nn.Module._apply is apply


def test_distributions_of_unknown_values_are_taken_as_valid() -> None:
    def sample(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = model.layer(x)
        return torch.distributions.Normal(hidden, hidden.exp()).rsample()

    torch.distributions.Distribution.set_default_validate_args(True)  # the compiler sets it
    case = example(sample)
    assert "aten.exp" in capture(case.model, case.inputs).op_types
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
def test_a_mask_picks_its_part_and_everything_is_the_upper_bound(name: str) -> None:
    case = example(MASKS[name])
    half = capture(case.model, case.inputs, target="cpu", mask_fraction=0.5)
    whole = compared(case, mask_fraction=1.0)
    check_replay(whole)
    assert half.tensor_bytes.sum() < whole.graph.tensor_bytes.sum()
    with pytest.raises(CaptureError, match="or say with mask_fraction which part"):
        capture(case.model, case.inputs)
    rows = example(MASKS["rows"])
    step = StepSpec(rows.model, rows.inputs, mode="inference", mask_fraction=0.5)
    assert trace_step(step).results["output.0"].size == (3, 4)


def test_products_of_experts_count_each_row_once() -> None:
    def forward(net: Any, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        hidden = torch._grouped_mm(x, net.first, offs=ends).relu()
        return torch._grouped_mm(hidden, net.second, offs=ends)

    # Each row goes to one of three experts, rows of one expert side by side.
    first, second = (nn.Parameter(torch.randn(3, *size) / 4) for size in ((8, 16), (16, 8)))
    ends = torch.tensor([1, 4, 6], dtype=torch.int32)
    step = compared(Case(Net(forward, first=first, second=second), (torch.randn(6, 8), ends)))
    check_replay(step)
    products = [kind == "aten._grouped_mm" for kind in step.graph.op_types]
    assert step.graph.flops[products].tolist() == [2 * 6 * 8 * 16] * 5  # inputs have no gradient


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
            (chosen_rows,) = torch.where(chosen[:, expert])
            outputs = self.experts[f"expert_{int(expert)}"](rows[chosen_rows])
            result.index_add_(0, chosen_rows, outputs * scores[chosen_rows, expert, None])
        return result


@settings(max_examples=15, deadline=None)
@drawn(choose=st.sampled_from(list(CHOICES)), rows=st.integers(1, 30), experts=st.integers(3, 6))
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
