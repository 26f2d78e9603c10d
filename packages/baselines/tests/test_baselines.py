"""What every placer does, on problems of every kind."""

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
from placeto_graphs import PlacementProblem, PlacementResult, Placer, memory_penalised_runtime
from plain_evaluator import PlainEvaluator

PLACERS: list[Placer] = [
    SingleDevice(),
    CpuOnly(),
    RandomPlacer(samples=20),
    ExpertPlacer(),
    ScotchPlacer(),
    MetisPlacer(),
    RnnPlacer(RnnSettings(hidden_size=4, max_groups=8, evaluations=20)),
    Heft(),
    MTopo(),
    MEtf(),
    MSct(),
    CriticalPathPlacer(),
    LocalSearch(budget=60),
]


def name_of(placer: Placer) -> str:
    return placer.name


def penalised(problem: PlacementProblem, result: PlacementResult) -> float:
    batch = PlainEvaluator(problem).evaluate(result.placement[None])
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0])


def rank(problem: PlacementProblem, result: PlacementResult) -> tuple[bool, float]:
    """Return what is lower for a better result: what fits comes before what does not."""
    return not result.fits(problem.cluster), penalised(problem, result)


def check(problem: PlacementProblem, result: PlacementResult) -> None:
    """A result is what the evaluator says of its placement, and its curve ends there."""
    problem.check_placement(result.placement)
    batch = PlainEvaluator(problem).evaluate(result.placement[None])
    assert result.runtime == batch.runtime[0]
    assert result.peak_memory.tolist() == batch.peak_memory[0].tolist()
    assert result.fits(problem.cluster) == bool(
        (batch.peak_memory[0] <= problem.cluster.memory_bytes).all()
    )
    assert result.curve[-1].tolist() == [result.evaluations, penalised(problem, result)]
    rises = (np.diff(result.curve[:, 1]) > 0).sum()
    assert rises <= result.fits(problem.cluster)  # where the first that fits costs more


@pytest.mark.slow
def test_no_placer_beats_the_optimum_of_sixty_problems() -> None:
    found = 0
    for problem in random_problems(60):
        evaluator = PlainEvaluator(problem)
        best = rank(problem, exhaustive_search(problem, evaluator))
        has_cpu = any(device.kind == "cpu" for device in problem.cluster.devices)
        for placer in PLACERS:
            if placer.name != "cpu" or has_cpu:
                result = placer.place(problem, evaluator, seed=3)
                check(problem, result)
                assert rank(problem, result) >= best
        searched = LocalSearch(budget=400).place(problem, evaluator)
        found += rank(problem, searched) == best
    assert found >= 57


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_a_seed_gives_one_result(placer: Placer) -> None:
    problem = two_chains()
    first, again = (placer.place(problem, PlainEvaluator(problem), seed=5) for _ in range(2))
    assert first.placement.tolist() == again.placement.tolist()
    assert first.curve.tolist() == again.curve.tolist()


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
@pytest.mark.parametrize(
    "problem",
    [
        gpus([1], count=1),
        gpus([1, 1, 1]),
        gpus([1, 1], [(0, 1)], count=1),
        gpus([1]),
        gpus([0, 0, 0], [(0, 1), (1, 2)], tensor_bytes=[0, 0, 0], count=3),
    ],
    ids=["one of all", "no edges", "one device", "one group", "no costs"],
)
def test_problems_at_the_edge(placer: Placer, problem: PlacementProblem) -> None:
    kinds = ("cpu", "k80", "k80")[: problem.num_devices]
    problem = replace(problem, cluster=cluster([*kinds]))
    check(problem, placer.place(problem, PlainEvaluator(problem)))


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_no_group_goes_where_it_cannot_run(placer: Placer) -> None:
    compute_time = np.tile([2.0, 0.5, 0.5], (4, 1))
    compute_time[1, 1:] = np.inf
    compute_time[2, 0] = np.inf
    problem = two_chains(compute_time=compute_time)
    placement = placer.place(problem, PlainEvaluator(problem)).placement
    assert placement[1] == 0
    assert placement[2] != 0


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_a_result_says_that_it_runs_out_of_memory(placer: Placer) -> None:
    graph = op_graph(4, [(0, 2), (1, 3)], parameter_bytes=np.full(4, 10))
    problem = two_chains(graph=graph, cluster=cluster(["cpu", "k80", "k80"], memory=9))
    assert not placer.place(problem, PlainEvaluator(problem)).fits(problem.cluster)
    roomy = two_chains(graph=graph, cluster=cluster(["cpu", "k80", "k80"], memory=99))
    assert placer.place(roomy, PlainEvaluator(roomy)).fits(roomy.cluster)


@pytest.mark.parametrize("placer", PLACERS, ids=name_of)
def test_an_evaluator_of_another_problem_is_refused(placer: Placer) -> None:
    other = gpus([1], count=1)
    with pytest.raises(BaselineError, match="evaluator: expected one of PlacementProblem"):
        placer.place(two_chains(), PlainEvaluator(other))
