"""Translation as Addanki et al. (2019) have it: too large for one K80."""

import pytest

from placeto import load_model_graph
from placeto.placing.placers import expert_scopes
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_baselines import ExpertPlacer, LocalSearch, SingleDevice
from placeto_graphs import PlacementProblem, PlacementResult, Placer, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import MODELS

pytestmark = pytest.mark.slow


def problem_of(model: str, cluster: str) -> PlacementProblem:
    source = Source(model, load_model_graph(model), rules=MODELS[model].colocation_rules)
    return make_problem(source, parse_cluster(cluster))


def placed(problem: PlacementProblem, placer: Placer) -> PlacementResult:
    return placer.place(problem, Simulator(problem))


def test_one_gpu_and_the_expert_run_out_of_memory_as_published() -> None:
    problem = problem_of("nmt-2", "1xcpu+2xk80")
    expert = ExpertPlacer(expert_scopes(problem.graph.scopes))
    assert not placed(problem, SingleDevice()).fits(problem.cluster)
    assert not placed(problem, expert).fits(problem.cluster)
    assert placed(problem, LocalSearch(budget=300)).fits(problem.cluster)
