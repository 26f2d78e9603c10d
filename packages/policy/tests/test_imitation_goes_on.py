"""A run takes one course, however it is interrupted and shared out; it draws as it is told."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeto_policy import Demonstration, PlacementPolicy, PolicyError, demonstrate, preset
from placeto_policy.imitation import Imitation
from placeto_policy.learning_run import LearningRun
from placeto_policy.lessons import ImitationSettings
from placeto_policy.workers import OneProcess, Processes
from scheduled_problems import ListSchedule, problem_of, two_chains

SMALL = replace(preset("general"), hidden_units=16)
SETTINGS = ImitationSettings(graphs=2, states=4, own_graphs=1, own_rollouts=2, own_states=3)


def demonstrations() -> list[Demonstration]:
    chain = problem_of(nx.path_graph(5, create_using=nx.DiGraph), num_devices=3)
    return [
        demonstrate(ListSchedule(two_chains()), np.array([0, 0, 0, 1, 1, 1], np.int32)),
        demonstrate(ListSchedule(chain), np.zeros(5, np.int32)),
    ]


def imitation(processes: Processes | None = None, seed: int = 0) -> Imitation:
    policy = PlacementPolicy(settings=SMALL)
    return Imitation(
        policy, demonstrations(), steps=6, settings=SETTINGS, seed=seed, processes=processes
    )


def weights(run: LearningRun) -> torch.Tensor:
    return torch.cat([value.flatten() for value in run.policy.state_dict().values()])


def test_a_run_that_goes_on_comes_to_the_same_weights() -> None:
    whole, first, second = imitation(), imitation(), imitation()
    losses = [whole.step() for _ in range(6)]
    for _ in range(4):
        first.step()
    second.restore({name: value.clone() for name, value in first.tensors().items()})
    assert second.steps_done == 4
    assert [second.step() for _ in range(2)] == losses[4:]
    assert torch.equal(weights(whole), weights(second))


def test_the_policy_that_it_begins_with_stays_as_it_is() -> None:
    policy = PlacementPolicy(settings=SMALL)
    before = [parameter.clone() for parameter in policy.parameters()]
    run = Imitation(policy, demonstrations(), steps=1, settings=SETTINGS)
    run.step()
    assert all(map(torch.equal, before, policy.parameters()))
    assert not torch.equal(torch.cat([value.flatten() for value in before]), weights(run))


class Part(OneProcess):
    """One of several processes, whose part of the sum is kept."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self.parts: list[torch.Tensor] = []

    def sum(self, values: torch.Tensor) -> None:
        self.parts.append(values.clone())


def test_the_parts_of_processes_sum_up_to_the_gradient_of_one() -> None:
    alone, *several = (Part(0, 1), *(Part(rank, 3) for rank in range(3)))
    for part in (alone, *several):
        imitation(part).step()
    assert all(bool(part.parts[0].abs().sum() > 0) for part in several)
    summed = torch.stack([part.parts[0] for part in several]).sum(dim=0)
    torch.testing.assert_close(summed, alone.parts[0], rtol=1e-4, atol=1e-6)


class WithAnother(OneProcess):
    """A process beside which another one is about to learn something else."""

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([rows, rows + 1])


class WithTheSame(OneProcess):
    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        self.told = rows
        return np.concatenate([rows, rows])


def test_processes_with_different_runs_sum_no_gradients() -> None:
    with pytest.raises(PolicyError, match="expected the same training in all 2, got another seed"):
        imitation(WithAnother()).step()


def test_runs_differ_by_seed_weights_and_steps_done() -> None:
    told = []
    for seed, steps_before in ((0, 0), (0, 0), (1, 0), (0, 1)):
        process = WithTheSame()
        run = imitation(process, seed)
        run.steps_done = steps_before
        run.step()
        told.append(float(process.told[0, 0]))
    assert told[0] == told[1]
    assert len(set(told)) == 3


def test_the_learning_rate_rises_and_then_falls_to_a_twentieth() -> None:
    run = Imitation(PlacementPolicy(settings=SMALL), demonstrations(), steps=1000)
    rates = []
    for done in (0, 49, 500, 1000):
        run.steps_done = done
        run.step()
        rates.append(run._optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([2e-3 / 50, 2e-3 * 0.95345, 2e-3 * 0.525, 1e-4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("steps_done"), "steps_done: expected torch.int64 .* got none"),
        (
            lambda tensors: tensors.update({"policy.scores.first.bias": torch.zeros(3)}),
            r"policy.scores.first.bias: expected torch.float32 of shape \(32,\), got .* \(3,\)",
        ),
        (
            lambda tensors: tensors["adam.exp_avg.scores.first.bias"].fill_(float("nan")),
            "adam.exp_avg.scores.first.bias: expected finite numbers, got others",
        ),
    ],
)
def test_what_is_not_of_such_a_run_is_refused(change: object, message: str) -> None:
    run = imitation()
    run.step()
    tensors = run.tensors()
    change(tensors)  # type: ignore[operator]
    with pytest.raises(PolicyError, match=message):
        imitation().restore(tensors)


def test_graphs_are_drawn_by_their_weights() -> None:
    policy = PlacementPolicy(settings=SMALL)
    never = Imitation(policy, demonstrations(), steps=9, weights=[0.0, 2.0], settings=SETTINGS)
    rarely = Imitation(policy, demonstrations(), steps=9, weights=[1.0, 3.0], settings=SETTINGS)
    drawn: dict[str, list[int]] = {"never": [], "rarely": []}
    for step in range(600):
        for name, run in (("never", never), ("rarely", rarely)):
            run.steps_done = step
            drawn[name] += [graph for _, graph, _ in run.own_turns()]
    assert set(drawn["never"]) == {1}
    assert np.mean(drawn["rarely"]) == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(PolicyError, match="weights: expected 2 finite numbers >= 0, not all"):
        Imitation(PlacementPolicy(settings=SMALL), demonstrations(), steps=1, weights=weights)


def test_more_processes_than_graphs_of_a_step_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"processes: expected at most 3, .* got 4"):
        imitation(Part(0, 4))
