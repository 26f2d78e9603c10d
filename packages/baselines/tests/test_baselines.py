"""What every placer does, on problems of every kind."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from baseline_problems import cluster, gpus, op_graph, random_problems, two_chains
from placeto_baselines import (
    BaselineError,
    CpuOnly,
    CriticalPathPlacer,
    ExpertPlacer,
    Heft,
    LocalSearch,
    MEtf,
    MetisPlacer,
    MSct,
    MTopo,
    RandomPlacer,
    RnnPlacer,
    RnnSettings,
    ScotchPlacer,
    SingleDevice,
    exhaustive_search,
)
from placeto_graphs import (
    EvaluationBatch,
    PlacementProblem,
    PlacementResult,
    Placer,
    placement_ranks,
)
from placeto_graphs.testing import PlacerSuite, problem_with_barred_devices
from plain_evaluator import PlainEvaluator

PLACERS: list[Placer] = [
    SingleDevice(),
    CpuOnly(),
    RandomPlacer(max_evaluations=20),
    ExpertPlacer(),
    ScotchPlacer(),
    MetisPlacer(),
    RnnPlacer(RnnSettings(hidden_size=4, max_groups=8, evaluations=20)),
    Heft(),
    MTopo(),
    MEtf(),
    MSct(),
    CriticalPathPlacer(),
    LocalSearch(max_evaluations=60),
]


def name_of(placer: Placer) -> str:
    return placer.name


def rank(problem: PlacementProblem, result: PlacementResult) -> tuple[bool, float]:
    batch = PlainEvaluator(problem).evaluate(result.placement[None])
    return placement_ranks(batch, problem.cluster.memory_bytes)[0]


def reported_rank(problem: PlacementProblem, result: PlacementResult) -> tuple[bool, float]:
    """Return the rank of the costs that a placer says its placement has."""
    batch = EvaluationBatch(
        runtime=np.array([result.runtime]), peak_memory=np.array([result.peak_memory])
    )
    return placement_ranks(batch, problem.cluster.memory_bytes)[0]


def optimum(problem: PlacementProblem, evaluator: PlainEvaluator) -> tuple[bool, float]:
    """Return the least rank of all placements in which every group can run."""
    devices = [np.flatnonzero(row) for row in np.isfinite(problem.group_graph.compute_time)]
    placements = np.array(list(itertools.product(*devices)), np.int32)
    return min(placement_ranks(evaluator.evaluate(placements), problem.cluster.memory_bytes))


@pytest.mark.slow
def test_no_placer_beats_the_optimum_of_sixty_problems() -> None:
    num_optimal = 0
    for problem in random_problems(60):
        evaluator = PlainEvaluator(problem)
        best = optimum(problem, evaluator)
        assert reported_rank(problem, exhaustive_search(problem, evaluator)) == best
        has_cpu = any(device.kind == "cpu" for device in problem.cluster.devices)
        for placer in PLACERS:
            if placer.name != "cpu" or has_cpu:
                result = placer.place(problem, evaluator, seed=3)
                assert reported_rank(problem, result) == rank(problem, result) >= best
                assert result.curve[-1, 0] == result.evaluations
        searched = LocalSearch(max_evaluations=400).place(problem, evaluator)
        num_optimal += rank(problem, searched) == best
    assert num_optimal >= 57


class TestEveryPlacer(PlacerSuite):
    placer: Placer

    @pytest.fixture(autouse=True, params=PLACERS, ids=name_of)
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.placer = request.param

    def make_placer(self, _: PlacementProblem) -> Placer:
        return self.placer

    def make_evaluator(self, problem: PlacementProblem) -> PlainEvaluator:
        return PlainEvaluator(problem)

    def problems(self) -> Iterator[PlacementProblem]:
        """Yield one device, one group, no edges, no costs, and devices that cannot run a group."""
        for edge in (
            gpus([1], count=1),
            gpus([1, 1, 1]),
            gpus([1, 1], [(0, 1)], count=1),
            gpus([1]),
            gpus([0, 0, 0], [(0, 1), (1, 2)], tensor_bytes=[0, 0, 0], count=3),
        ):
            yield replace(edge, cluster=cluster(["cpu", "k80", "k80"][: edge.num_devices]))
        yield problem_with_barred_devices()


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_a_result_says_that_it_runs_out_of_memory(placer: Placer) -> None:
    graph = op_graph(4, [(0, 2), (1, 3)], parameter_bytes=np.full(4, 10))
    problem = two_chains(graph=graph, cluster=cluster(["cpu", "k80", "k80"], memory=9))
    assert not placer.place(problem, PlainEvaluator(problem)).fits(problem.cluster)
    roomy = two_chains(graph=graph, cluster=cluster(["cpu", "k80", "k80"], memory=99))
    assert placer.place(roomy, PlainEvaluator(roomy)).fits(roomy.cluster)


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_an_evaluator_of_another_problem_is_refused(placer: Placer) -> None:
    single_op = gpus([1], count=1)
    with pytest.raises(BaselineError, match="evaluator: expected one of PlacementProblem"):
        placer.place(two_chains(), PlainEvaluator(single_op))


@pytest.mark.parametrize("cpu", ["cpu", "cpu-ddr5-2ch"])
def test_the_single_device_is_the_fastest_gpu(cpu: str) -> None:
    compute_time = np.tile([0.1, 0.5, 0.4, 0.6], (4, 1))
    problem = two_chains(cluster=cluster([cpu, "k80", "v100", "k80"]), compute_time=compute_time)
    result = SingleDevice().place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == [2, 2, 2, 2]
    assert result.runtime == pytest.approx(1.6)
    assert result.evaluations == 3


def test_the_single_device_is_one_that_holds_the_model_if_there_is_one() -> None:
    problem = gpus([[0.1, 0.5]] * 2, [(0, 1)], parameter_bytes=[10**9 // 2 - 1] * 2)
    small = replace(problem.cluster.devices[0], memory_bytes=5)
    on = replace(problem.cluster, devices=(small, problem.cluster.devices[1]))
    problem = replace(problem, cluster=on)
    result = SingleDevice().place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == [1, 1]
    assert result.fits(problem.cluster)


def test_cpu_only_takes_the_fastest_cpu() -> None:
    compute_time = np.tile([3.0, 2.0, 0.1], (4, 1))
    compute_time[3, :2] = np.inf
    problem = two_chains(cluster=cluster(["cpu", "cpu-ddr4-8ch", "k80"]), compute_time=compute_time)
    assert CpuOnly().place(problem, PlainEvaluator(problem)).placement.tolist() == [1, 1, 1, 2]


def test_cpu_only_needs_a_cpu() -> None:
    problem = two_chains(cluster=cluster(["k80", "v100", "k80"]))
    message = "cluster: expected a device of the kind 'cpu', got 'k80', 'v100'"
    with pytest.raises(BaselineError, match=re.escape(message)):
        CpuOnly().place(problem, PlainEvaluator(problem))


def test_random_placements_are_uniform_over_the_devices_that_can_run_a_group() -> None:
    compute_time = np.ones((4, 3))
    compute_time[0, 1] = np.inf
    problem = two_chains(compute_time=compute_time)
    drawn: list[list[int]] = []

    class Recorder(PlainEvaluator):
        def look_up(self, placement: tuple[int, ...]) -> tuple[float, list[int]]:
            drawn.append(list(placement))
            return super().look_up(placement)

    result = RandomPlacer(max_evaluations=3000).place(problem, Recorder(problem))
    assert result.evaluations == len(drawn) == 3000
    counts = np.array([np.bincount(column, minlength=3) for column in np.array(drawn).T])
    assert counts[0, 1] == 0
    assert counts[0, [0, 2]] == pytest.approx(1500, abs=120)  # four standard deviations
    assert counts[1:] == pytest.approx(1000, abs=110)
    assert result.runtime == 2.0


def test_random_placement_needs_a_sample() -> None:
    with pytest.raises(BaselineError, match="max_evaluations: expected at least 1, got 0"):
        RandomPlacer(max_evaluations=0)
