"""A step that runs on several devices gives what PyTorch gives, wherever its ops run."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capture_checks import comparison
from captured_models import CASES, case
from inplace_programs import InPlaceProgram, programs
from placed_runs import check_placements, placed_run, random_devices
from placeto_capture import CaptureError, capture, executable_step
from placeto_graphs import ExecutableStep, StepRun


@pytest.mark.parametrize("name", CASES)
def test_every_placement_gives_what_pytorch_gives(name: str) -> None:
    check_placements(comparison(name), num_placements=9)


@settings(max_examples=30)
@given(programs(), st.integers(0, 2**32 - 1), st.integers(0, 11), st.booleans())
def test_in_place_writes_on_several_devices(
    program: InPlaceProgram, seed: int, start: int, shared_memory: bool
) -> None:
    inputs = torch.arange(12.0).reshape(3, 4) / 7
    shared = program.memory[start : start + 12].view(3, 4)
    step = executable_step(program, (inputs, shared), mode="inference", shared_memory=shared_memory)
    found = placed_run(step, random_devices(step.graph, 3, seed), 3, seed).results
    with torch.no_grad():
        expected = program(inputs.clone(), shared)
    torch.testing.assert_close(found["output.0"], expected)
    torch.testing.assert_close(found["buffer"], program.buffer)
    torch.testing.assert_close(found["weight"], program.weight.data)
    torch.testing.assert_close(found["scale"], program.scale)


@pytest.mark.parametrize("name", ["residual network", "recomputed", "writes in pieces"])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_nothing_but_what_is_wanted_is_left_in_memory(name: str, shared_memory: bool) -> None:
    example = case(name)
    step = executable_step(
        example.model, example.inputs, results=["loss"], shared_memory=shared_memory
    )
    for seed in range(5):
        held = placed_run(step, random_devices(step.graph, 3, seed), 3, seed).held
        assert sum(held) == 4  # the loss


def small_step() -> ExecutableStep:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2))
    return executable_step(model, torch.ones(5, 3))


def run_to_the_end(step: ExecutableStep) -> StepRun:
    run = step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    with run.worker(0):
        for op in range(step.graph.num_ops):
            run.run(op)
    return run


def test_the_graph_is_that_of_the_capture() -> None:
    example = case("attention block")
    assert executable_step(example.model, example.inputs).graph == capture(
        example.model, example.inputs
    )


def test_each_run_begins_with_the_same_values_and_the_model_stays_as_it_is() -> None:
    example = case("recomputed")
    before = {name: value.clone() for name, value in example.model.state_dict().items()}
    step = executable_step(example.model, example.inputs)
    first, second = (dict(run_to_the_end(step).results()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["first.0.weight"], before["first.0.weight"])
    after = example.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_run_that_was_broken_off_leaves_nothing_behind() -> None:
    step = small_step()
    expected = dict(run_to_the_end(step).results())
    run = step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    with run.worker(0):
        for op in range(step.graph.num_ops - 1):
            run.run(op)
    results = run_to_the_end(step).results()
    assert all(torch.equal(results[name], value) for name, value in expected.items())


def test_results_are_there_until_the_next_run() -> None:
    step = small_step()
    first = run_to_the_end(step)
    run_to_the_end(step)
    with pytest.raises(CaptureError, match=r"^results: expected to be asked for before the next"):
        first.results()


def test_the_random_numbers_of_the_caller_stay_where_they_are() -> None:
    step = small_step()
    state = torch.get_rng_state()
    run_to_the_end(step)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_worker_sets_back_what_it_sets() -> None:
    step, num_threads = small_step(), torch.get_num_threads()
    run = step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    with run.worker(0):
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == num_threads


def test_what_is_not_there_is_said_in_one_line() -> None:
    step = small_step()
    everything = np.zeros(step.graph.num_ops, np.int32)
    count = torch.cuda.device_count()
    with pytest.raises(
        CaptureError,
        match=rf"^devices\[0\]: expected one of {count} CUDA devices that PyTorch finds here, "
        rf"got 'cuda:{count}'$",
    ):
        step.begin([f"cuda:{count}"], everything)
    with pytest.raises(CaptureError, match=r"^devices\[1\]: expected cpu:NUMBER or cuda:NUMBER"):
        step.begin(["cpu:0", "tpu:0"], everything)
    with pytest.raises(CaptureError, match=r"^results: expected names of this step, got 'gain'$"):
        executable_step(nn.Linear(2, 2), torch.ones(1, 2), results=["gain"])
    with pytest.raises(CaptureError, match=r"^values: expected names of this step, got 'gain'$"):
        executable_step(nn.Linear(2, 2), torch.ones(1, 2), values={"gain": torch.ones(1)})
    with pytest.raises(CaptureError, match=r"^threads_per_device: expected at least 1, got 0$"):
        executable_step(nn.Linear(2, 2), torch.ones(1, 2), threads_per_device=0)
