"""Starts of the portfolio's search: subsets of devices, chains of layers, and other placers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import simulated_problems
from baseline_problems import cluster, gpus, op_graph, problem_of
from placeto_baselines import CriticalPathPlacer, LayerChain, PortfolioSearch, Stages
from placeto_baselines.placement_trials import WatchedEvaluator
from placeto_baselines.search import contracted_search, portfolio
from placeto_baselines.search.layers import _voted_labels
from placeto_baselines.search.subsets import CHAIN, placements_without_search, unlike_subsets
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult
from placeto_simulator import Simulator
from plain_evaluator import PlainEvaluator

N = np.inf  # seconds where an op cannot run


def watched(problem: PlacementProblem) -> WatchedEvaluator:
    return WatchedEvaluator(PlainEvaluator(problem), lambda _: None)


def test_a_chain_that_leads_is_kept_if_a_longer_search_proposes_one_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = gpus([1] * 4, [(0, 1), (1, 2), (2, 3)], parameter_bytes=[10] * 4, memory=30)
    evaluator = watched(problem)
    proposals = [Stages((0, 2, 4), (1, 0)), Stages((0, 4), (0,))]

    def proposed(
        _chain: LayerChain, _devices: range, _starts: Sequence[Stages], _most: int
    ) -> Stages:
        return proposals.pop(0)

    monkeypatch.setattr(portfolio, "best_chain", proposed)
    search = PortfolioSearch(max_evaluations=10_000)
    search.choices = [
        choice for choice in placements_without_search(problem, evaluator) if choice.kind == "alone"
    ]
    search._add_chain(LayerChain(problem, evaluator, np.arange(4)), evaluator, 10_000)
    assert proposals == []
    assert search.choices[-1].kind == CHAIN
    assert search.choices[-1].result.placement.tolist() == [1, 1, 0, 0]


class Counting:
    """A placer that counts its calls, and puts everything where it can run."""

    name = "counting"
    calls = 0

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        del seed
        self.calls += 1
        placement = problem.group_graph.compute_time.argmin(axis=1).astype(np.int32)
        batch = evaluator.evaluate(placement[None])
        return PlacementResult(
            placement=placement,
            runtime=float(batch.runtime[0]),
            peak_memory=batch.peak_memory[0],
            evaluations=1,
            seconds=0.0,
            curve=np.array([[1.0, float(batch.runtime[0])]]),
        )


@pytest.mark.parametrize(
    ("seconds", "affordable", "calls"),
    [
        ([[1, 1, 1, 1]] * 7, 10_000, 1),  # 16,384 placements
        ([[1, 1, N, N]] * 7, 10_000, 0),  # 128 of them can run, and all are tried
        ([[1, 1, N, N]] * 7, 100, 1),  # unless the budget is smaller
    ],
)
def test_placers_are_no_starts_of_a_search_that_tries_all(
    seconds: list[list[float]], affordable: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    placer, problem = Counting(), gpus(seconds)
    monkeypatch.setattr(portfolio, "PLACERS_OF_STARTS", [(placer, 1)])
    search = PortfolioSearch(max_evaluations=affordable)
    search._results_of_placers(problem, watched(problem), 0, affordable)
    assert placer.calls == calls


def test_a_group_belongs_to_the_layer_of_most_time_where_it_can_run() -> None:
    # Both ops run on the first device alone, as the one of 3 s cannot run on the other.
    problem = gpus([[3, N], [2, 2]], groups=[0, 0])
    assert _voted_labels(problem, np.array([0, 1]), 2).tolist() == [0]
    assert _voted_labels(problem, np.array([1, 0]), 2).tolist() == [1]


def test_subsets_differ_by_machines_and_by_the_way_to_the_host() -> None:
    kinds = ["cpu", "k80", "k80", "k80"]
    problem = problem_of(op_graph(1, []), cluster(kinds), np.array([[9.0, 1.0, 1.0, 1.0]]))
    pairs_of_gpus = [pair for pair in unlike_subsets(problem, 2) if 0 not in pair]
    assert pairs_of_gpus == [(1, 2)]
    in_machines = replace(
        problem.cluster, machine=np.array([0, 0, 0, 1]), machine_names=tuple("ab")
    )
    apart = replace(problem, cluster=in_machines)
    assert [pair for pair in unlike_subsets(apart, 2) if 0 not in pair] == [(1, 2), (1, 3)]
    bandwidth = np.ones((4, 4))
    bandwidth[0, 3] = 0.5
    slow = replace(problem, cluster=replace(problem.cluster, bandwidth=bandwidth))
    assert [pair for pair in unlike_subsets(slow, 2) if 0 not in pair] == [(1, 2), (1, 3)]


def test_a_large_problem_is_searched_in_blocks_of_ops_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(1)
    problem = simulated_problems.layered_problem(2_000, 4, 500, generator)
    simulator = Simulator(problem, num_threads=1)
    ordinary = PortfolioSearch(max_evaluations=30).place(problem, simulator)
    monkeypatch.setattr(portfolio, "FEWEST_OPS", 1_000)
    monkeypatch.setattr(contracted_search, "SIZES", (500, 1_500))
    whole = PortfolioSearch(max_evaluations=30, contracts=False).place(problem, simulator)
    assert (whole.placement == ordinary.placement).all()
    search = PortfolioSearch(max_evaluations=30)
    result = search.place(problem, simulator)
    assert result.evaluations <= 30
    assert result.runtime < ordinary.runtime
    scheduled = CriticalPathPlacer().place(problem, simulator)
    assert result.runtime <= scheduled.runtime < ordinary.runtime
    assert {choice.kind for choice in search.choices} <= {"alone", "in-order", "balanced", "chain"}
    for choice in search.choices:
        batch = simulator.evaluate(choice.result.placement[None])
        assert batch.runtime[0] == choice.result.runtime
    assert (
        PortfolioSearch(max_evaluations=30).place(problem, simulator).placement == result.placement
    ).all()
    stopped = PortfolioSearch(max_evaluations=30, stopped=lambda: True).place(problem, simulator)
    assert stopped.evaluations == 1


def test_a_large_problem_is_never_placed_worse_than_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = gpus([1] * 8, [(0, 1), (2, 3), (4, 5), (6, 7)], memory=30)
    best = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32)
    monkeypatch.setattr(portfolio, "FEWEST_OPS", 1)
    monkeypatch.setattr(contracted_search, "SIZES", (2, 4))
    simulator = Simulator(problem, num_threads=1)
    result = PortfolioSearch(max_evaluations=3).place(problem, simulator, start=best)
    assert (result.runtime, result.evaluations) == (4.0, 3)
