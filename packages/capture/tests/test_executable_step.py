"""A step that runs on several devices gives what PyTorch gives, wherever its ops run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capture_checks import comparison
from captured_models import CASES, case
from placed_runs import begin_devices, check_placements, placed_run, random_devices, results_of
from placeto_capture import CaptureError, executable_step, executable_training
from placeto_graphs import ExecutableStep


@dataclass(frozen=True)
class Statement:
    """``kind`` of statement, on the views ``target`` and ``operand`` of the tensors so far."""

    kind: str
    target: int
    operand: int
    view: str


VIEWS = {
    "all": lambda tensor: tensor,
    "first row": lambda tensor: tensor[:1],
    "last rows": lambda tensor: tensor[1:],
    "even columns": lambda tensor: tensor[:, ::2],
    "transposed": lambda tensor: tensor.t(),
}
KINDS = ("new", "add in place", "copy in place", "scale in place", "fill in place", "view")


class InPlaceProgram(nn.Module):
    """Runs statements on a list of tensors.

    The first are a buffer and a parameter, which overlap in ``memory``, and an input that may do
    so, too; a number that is scaled with is in the same memory, but alone.
    """

    buffer: torch.Tensor
    scale: torch.Tensor

    def __init__(self, statements: list[Statement]) -> None:
        super().__init__()
        self.statements = statements
        self.memory = torch.linspace(-1, 1, 24)
        self.register_buffer("buffer", self.memory[:12].reshape(3, 4))
        self.register_buffer("scale", self.memory[23])
        self.weight = nn.Parameter(self.memory[6:18].reshape(3, 4), requires_grad=False)

    def forward(self, inputs: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        tensors = [self.buffer, self.weight.detach(), shared, inputs * 2]
        tensors += [torch.empty(3, 4).copy_(inputs)]
        for statement in self.statements:
            target = tensors[statement.target % len(tensors)]
            operand = tensors[statement.operand % len(tensors)]
            view = VIEWS[statement.view](target)
            if statement.kind == "new":
                tensors.append(torch.tanh(target) + operand)
            elif statement.kind == "view":
                tensors.append(target.view(3, 4))
            elif statement.kind == "add in place":
                view.add_(operand.mean())
            elif statement.kind == "copy in place":
                view.copy_(operand.mean().expand(view.shape))
            elif statement.kind == "scale in place":
                view.mul_(self.scale)
            else:
                view.zero_()
        return torch.stack(tensors)


def programs() -> st.SearchStrategy[InPlaceProgram]:
    """Return programs of up to twelve statements."""
    statement = st.builds(
        Statement,
        kind=st.sampled_from(KINDS),
        target=st.integers(0, 9),
        operand=st.integers(0, 9),
        view=st.sampled_from(sorted(VIEWS)),
    )
    return st.builds(InPlaceProgram, st.lists(statement, max_size=12))


@pytest.mark.parametrize("name", CASES)
def test_every_placement_gives_what_pytorch_gives(name: str) -> None:
    check_placements(comparison(name), num_placements=9)


@settings(max_examples=30)
@given(programs(), st.integers(0, 2**32 - 1), st.integers(0, 11))
def test_in_place_writes_on_several_devices(program: InPlaceProgram, seed: int, start: int) -> None:
    inputs = torch.arange(12.0).reshape(3, 4) / 7
    shared = program.memory[start : start + 12].view(3, 4)
    step = executable_step(program, (inputs, shared), mode="inference")
    results = placed_run(step, random_devices(step.graph, 3, seed), 3, seed).results
    with torch.no_grad():
        expected = program(inputs.clone(), shared)
    torch.testing.assert_close(results["output.0"], expected)
    torch.testing.assert_close(results["buffer"], program.buffer)
    torch.testing.assert_close(results["weight"], program.weight.data)
    torch.testing.assert_close(results["scale"], program.scale)


@pytest.mark.parametrize("name", ["residual network", "recomputed", "writes in pieces"])
def test_nothing_but_what_is_wanted_is_left_in_memory(name: str) -> None:
    example = case(name)
    step = executable_step(example.model, example.inputs, results=["loss"])
    for seed in range(5):
        held_bytes = placed_run(step, random_devices(step.graph, 3, seed), 3, seed).held_bytes
        assert sum(held_bytes) == 4  # the loss


def small_step() -> ExecutableStep:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2))
    return executable_step(model, torch.ones(5, 3))


def run_to_the_end(step: ExecutableStep, num_left: int = 0) -> Mapping[str, Any]:
    devices = begin_devices(step, np.zeros(step.graph.num_ops, np.int32), 1)
    with devices[0].entered():
        for op in range(step.graph.num_ops - num_left):
            devices[0].run(op)
    return {} if num_left else results_of(step, devices)


def test_each_run_begins_with_the_same_values_and_the_model_stays_as_it_is() -> None:
    example = case("recomputed")
    initial = {name: value.clone() for name, value in example.model.state_dict().items()}
    step = executable_step(example.model, example.inputs)
    first, second = (run_to_the_end(step) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["blocks.0.0.weight"], initial["blocks.0.0.weight"])
    final = example.model.state_dict()
    assert all(torch.equal(final[name], value) for name, value in initial.items())


def test_a_run_that_was_broken_off_leaves_nothing_behind() -> None:
    step = small_step()
    expected = run_to_the_end(step)
    run_to_the_end(step, num_left=1)
    results = run_to_the_end(step)
    assert all(torch.equal(results[name], value) for name, value in expected.items())


def test_a_device_sets_back_what_it_sets() -> None:
    step, num_threads, state = small_step(), torch.get_num_threads(), torch.get_rng_state()
    run_to_the_end(step)
    assert torch.equal(torch.get_rng_state(), state)
    device = step.on_device(0, ["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    with device.entered():
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == num_threads


def test_what_is_not_there_is_said_in_one_line() -> None:
    step, count = small_step(), torch.cuda.device_count()
    for index, names, line in (
        (0, [f"cuda:{count}"], f"one of {count} CUDA devices that .* here, got 'cuda:{count}'$"),
        (1, ["cpu:0", "tpu:0"], "cpu:NUMBER or cuda:NUMBER"),
    ):
        with pytest.raises(CaptureError, match=rf"^devices\[{index}\]: expected {line}"):
            step.check_devices(names)
    for options, line in (
        ({"results": ["gain"]}, "results: expected names of this step, got 'gain'"),
        ({"values": {"gain": torch.ones(1)}}, "values: expected names of this step, got 'gain'"),
        ({"threads_per_device": 0}, "threads_per_device: expected at least 1, got 0"),
    ):
        with pytest.raises(CaptureError, match=f"^{line}$"):
            executable_step(nn.Linear(2, 2), torch.ones(1, 2), **options)


@pytest.mark.parametrize("make", [executable_step, executable_training])
def test_a_misspelt_keyword_is_an_error_of_the_function_itself(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"^{make.__name__}\(\) got .* argument 'autocats'"):
        make(nn.Linear(2, 2), torch.ones(1, 2), autocats=torch.bfloat16)


class Dropping(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return attention of inputs to themselves, with dropout."""
        attend = nn.functional.scaled_dot_product_attention
        return attend(inputs, inputs, inputs, dropout_p=0.5)


def test_masks_of_attention_are_not_drawn_again_on_devices_of_another_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    model = nn.Sequential(nn.Linear(8, 8), Dropping())
    step = executable_step(model, torch.ones(2, 3, 4, 8))
    backward = [name.endswith("attention_backward") for name in step.graph.op_names]
    assert sum(backward) == 1
    places = np.array(backward, np.int32)
    step.on_device(1, ["cpu:0", "cpu:1"], places)
    with pytest.raises(CaptureError, match=r"its gradient on a device of .* cuda:0 and cpu:0$"):
        step.on_device(1, ["cuda:0", "cpu:0"], places)
