"""Numbers on the pages of experiments, by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from experiment_folders import cell
from experiment_tasks import placed
from placeto.trials.placing_tasks import Place
from placeto.trials.records import Episode, Outcome, Trained
from placeto.trials.tables import NOTHING
from placeto.trials.trials import Experiment, Graph, Results, Watch, Workspace
from placeto_experiments.paper.architectures import architectures
from placeto_experiments.paper.generalise import generalise
from placeto_experiments.paper.pages import count_text, percent_over, spread
from placeto_experiments.paper.plan import Plan, chosen_plan
from placeto_experiments.paper.rewards import _until, _variation, rewards
from placeto_experiments.paper.tasks import FinalEpisode, PlaceAtRandom, TrainPlaceto, trained_of
from placeto_experiments.paper.traversal import traversal
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster, save_problem


def test_updates_are_counted_to_the_first_that_was_so_fast() -> None:
    curves = [
        np.array(list(enumerate(runtimes, start=1)))
        for runtimes in ([5.0, 2.0, 4.0, 2.0], [5.0, 5.0, 5.0, 1.0])
    ]
    assert _until(curves, 2.1) == "3 (2 to 4)"
    assert _until(curves, 1.5) == NOTHING


def test_the_variation_is_that_of_a_sample_of_seeds() -> None:
    curves = [np.array([[1, runtime], [2, 5.0]]) for runtime in (1.0, 2.0, 3.0)]
    assert _variation(curves) == "25.0 %"  # the mean of 50 % and 0 %
    assert _variation(curves[:1]) == NOTHING


def finished(experiment: Experiment) -> dict[str, Any]:
    """Return a record of each trial, with numbers of its own."""
    generator, records = np.random.default_rng(0), dict[str, Any]()
    for trial in experiment.trials:
        costs, count = generator.uniform(1.0, 3.0, 5).tolist(), int(generator.integers(1, 1000))
        if isinstance(trial.task, FinalEpisode):
            records[trial.name] = Episode(cost=costs[-1], steps=costs)
        elif isinstance(trial.task, Place):
            records[trial.name] = placed(cost=costs[-1])
        else:
            records[trial.name] = Trained(
                evaluations=count, seconds=1.0, runtimes=costs, entropies=costs
            )
    return records


def test_a_page_of_several_seeds_has_all_of_them_and_ratios_of_the_same_seed() -> None:
    experiment = traversal("nmt:0", chosen_plan("traversal", "smoke", seeds=3))
    records = finished(experiment)
    page = "\n".join(experiment.page(Results(records)).sections)

    def costs(placer: str, *graphs: str) -> NDArray[np.float64]:
        names = [[f"seed{seed}/{graph}/{placer}" for graph in graphs] for seed in range(3)]
        return np.array([[records[name].cost for name in of_seed] for of_seed in names])

    unseen = costs("rnn-zero-shot", *(f"nmt-0-order-{order}" for order in range(4, 8)))
    for column, reference in ((2, "placeto-trained"), (3, "rnn-trained")):
        ratios = (unseen / costs(reference, "nmt-0")).mean(axis=1)
        assert cell(page, "RNN, zero-shot", column) == spread(ratios, percent_over)
    experiment = rewards("nmt:0", chosen_plan("rewards", "smoke", seeds=3))
    records = finished(experiment)
    page = "\n".join(experiment.page(Results(records)).sections)
    evaluations = [records[f"training/terminal-{seed}"].evaluations for seed in range(3)]
    assert cell(page, "Terminal", 5) == spread(evaluations, count_text)


def test_every_update_of_a_long_log_counts(tmp_path: Path) -> None:
    names = ("best_runtime", "reward", "learning_rate", "gradient_norm")
    other_fields = {**dict.fromkeys(names, 0.0), "evaluations_per_second": 3.0}

    rows = [
        {
            **other_fields,
            "update": update,
            "evaluations": 6 * update,
            "runtime": 900.0 - update,
            "entropy": 1 / update,
        }
        for update in range(1, 901)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    trained = trained_of(path)
    assert trained.evaluations == 5400
    assert trained.seconds == pytest.approx(1800.0)
    assert trained.runtimes == [900.0 - update for update in range(1, 901)]
    assert trained.entropies == [1 / update for update in range(1, 901)]


def test_a_random_placement_is_the_mean_of_many_that_can_run(tmp_path: Path) -> None:
    """The first op takes 1 s, 3 s or forever, the second one forever, 2 s or 2 s."""
    chain = nx.DiGraph([("a", "b")])
    nx.set_edge_attributes(chain, 0, "bytes")
    problem = PlacementProblem(
        graph=from_networkx(chain),
        cluster=parse_cluster("3xk80"),
        compute_time=np.array([[1.0, 3.0, np.inf], [np.inf, 2.0, 2.0]]),
    )
    workspace, graph = Workspace(tmp_path), Graph("chain")
    workspace.problem_file("chain").parent.mkdir()
    save_problem(problem, workspace.problem_file("chain"))
    outcome = PlaceAtRandom(label="random", graph=graph, seed=0).run(
        workspace, Watch(lambda: False)
    )
    assert isinstance(outcome, Outcome)
    assert outcome.cost == outcome.runtime == pytest.approx(4.0, abs=0.3)


@pytest.mark.parametrize("experiment", [generalise, architectures])
def test_the_papers_configuration_learns_each_graph_in_one_number_of_groups(
    experiment: Callable[[str, Plan], Experiment],
) -> None:
    planned = experiment("nmt", chosen_plan(experiment.__name__, "small", seeds=1))
    tasks = [trial.task for trial in planned.trials if isinstance(trial.task, TrainPlaceto)]
    assert {task.policy.startswith("paper") for task in tasks} == {False, True}
    for task in tasks:
        names = [graph.name.partition("-granularity-")[0] for graph in task.graphs]
        assert len(set(names)) == 16
        assert len(names) == (16 if task.policy.startswith("paper") else 64)
