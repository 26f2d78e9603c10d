"""Trials of the experiments of the paper: what makes one another, what they run, their page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiment_tasks import Count, place, placed
from placeto.trials import folder as folder_module
from placeto.trials.folder import (
    content_digest,
    files_digest,
    trial_keys,
)
from placeto.trials.records import Placed
from placeto.trials.trials import (
    Graph,
    Results,
    Task,
    Trial,
    placing_trial,
)
from placeto_baselines import Limits, RnnSettings
from placeto_experiments.paper import tasks
from placeto_experiments.paper.pages import Summary, collapse_remark
from placeto_experiments.paper.plan import NUMBER_OF_GPUS, chosen_plan
from placeto_experiments.paper.tasks import (
    Bound,
    FixedOrders,
    PlaceAtRandom,
    PlaceInOrder,
    problem_in_order,
    random_order,
)
from placeto_graphs import PlacementProblem
from placeto_graphs.testing import example_problem
from placeto_policy import PlacementPolicy, Settings
from placeto_simulator import Simulator

GRAPH = Graph("x")
PROBLEM = example_problem(kinds=("k80", "k80"))

# What makes a trial another one.


def key(problem: PlacementProblem, task: Task | None = None, *needed_tasks: Task) -> str:
    needed_trials = [
        Trial(f"{index}", needed_task) for index, needed_task in enumerate(needed_tasks)
    ]
    trial = Trial(
        "place", task or place(), tuple(needed_trial.name for needed_trial in needed_trials)
    )
    return trial_keys([*needed_trials, trial], {"x": content_digest(problem)})["place"]


def test_settings_and_what_is_needed_make_another_trial() -> None:
    tasks_that_differ = [
        place(settings=Settings()),
        place(settings=replace(Settings(), discount=0.5)),
        place(settings=RnnSettings()),
        place(limits=Limits(11)),
        place(seed=1),
        place(graph=Graph("x", order=1)),
        place("rnn"),
        *(
            task(label="a", graph=GRAPH, seed=0, limits=Limits(10))
            for task in (Bound, PlaceAtRandom)
        ),
    ]
    first, *devices = PROBLEM.cluster.devices
    cluster = replace(PROBLEM.cluster, devices=(replace(first, memory_bytes=1), *devices))
    problems = [
        replace(PROBLEM, cluster=cluster),
        replace(PROBLEM, compute_time=2 * PROBLEM.compute_time),
        replace(PROBLEM, graph=replace(PROBLEM.graph, tensor_bytes=PROBLEM.graph.tensor_bytes + 1)),
    ]
    keys = [key(PROBLEM), *map(key, problems), *(key(PROBLEM, task) for task in tasks_that_differ)]
    keys += [key(PROBLEM, place(), Count(index)) for index in (1, 2)]
    assert key(example_problem(kinds=("k80", "k80"))) == key(PROBLEM)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("placeto_policy", {"placeto", "bound"}),
        ("placeto_capture", {"placeto", "bound"}),  # CPU only is placed by its times
        ("placeto_experiments", {"bound"}),  # those that have a task of this package
        ("placeto_execution", set()),
        ("torch", {"placeto", "bound"}),
    ],
)
def test_a_change_of_what_runs_a_trial_makes_another_one(
    changed: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = Bound(label="no", graph=GRAPH, seed=0)
    trials = [Trial("placeto", place()), Trial("bound", bound)]
    old_keys = trial_keys(trials, {"x": "problem"})
    for digest in (files_digest, folder_module._version):
        monkeypatch.setattr(
            folder_module,
            digest.__name__,
            lambda name, digest=digest: "" if name == changed else digest(name),
        )
    new_keys = trial_keys(trials, {"x": "problem"})
    assert {name for name in old_keys if old_keys[name] != new_keys[name]} == expected


# What a page tells of them.


def summary(
    placers: Mapping[str, Mapping[str, Placed | Sequence[Placed]]], *graphs: str
) -> Summary:
    """Return the summary of records by placer and graph: one for each seed, or one of all seeds."""
    records = {
        placing_trial(Count(0), placer, Graph(graph), seed).name: record
        for placer, of_graphs in placers.items()
        for graph, outcome in of_graphs.items()
        for seed, record in (
            [(None, outcome)] if isinstance(outcome, Placed) else enumerate(outcome)
        )
    }
    seeds = {name[4] for name in records if name.startswith("seed")}
    return Summary(Results(records), graphs or ["x", "y"], sorted(map(int, seeds)))


def test_means_are_over_graphs_and_spreads_over_seeds() -> None:
    costs = {"x": (2.0, 4.0), "y": (6.0, 2.0)}
    means = summary(
        {
            "a": {graph: [placed(cost=cost) for cost in of] for graph, of in costs.items()},
            "b": {"x": [placed(cost=1.0), placed(cost=2.0)], "y": placed(cost=4.0)},
            "c": {"x": [placed(fits=False), placed()], "y": placed(cost=None, fits=False)},
        }
    )
    assert [*map(means.mean_cost, "ac")] == [[4.0, 3.0], [np.inf, np.inf]]  # it cannot run
    assert means.mean_ratio("a", "b") == [(2 + 1.5) / 2, (2 + 0.5) / 2]
    assert means.all_values("b").tolist() == [1.0, 4.0, 2.0, 4.0]
    assert means.where_some_fit(["c"]).graphs == ["x"]
    assert means.where_some_fit(["c", "b"]).graphs == ["x", "y"]


def test_policies_that_place_as_a_single_gpu_are_named() -> None:
    runs: Any = {
        "same": {"x": [placed(cost=2.0), placed(cost=2.0)], "y": [placed(cost=4.0)] * 2},
        "near": {"x": [placed(cost=2.002), placed(cost=1.9)], "y": [placed(cost=4.0)] * 2},
        # No difference on average, of 1.5 % more on one graph and 1.5 % less on the other
        "else": {"x": [placed(cost=2.03)] * 2, "y": [placed(cost=3.94)] * 2},
        "single": {"x": placed(cost=2.0), "y": placed(cost=4.0)},
    }
    policies = summary(runs)
    seeds = {name: policies.collapsed(name) for name in ("same", "near", "else")}
    assert seeds == {"same": [0, 1], "near": [0], "else": []}
    assert policies.collapsed("else", np.array([2.03, 3.94])) == [0, 1]
    assert collapse_remark(seeds).endswith(": same (seeds 0, 1), near (seed 0).")
    assert collapse_remark({"else": []}) == ""


def test_how_far_a_search_goes_until_it_is_as_fast() -> None:
    goals = {"x": [placed(cost=5.5)], "y": [placed(cost=3.0)], "z": [placed(cost=9.5)]}
    placers: Any = {"search": {name: [placed()] for name in goals}, "goal": goals}
    for graphs, expected in (("x", (1.0, 10.0, 1.0)), ("xz", (1.0, 5.5, 0.55))):
        assert summary(placers, *graphs).reached("search", "goal") == expected
    # One is never, and counts.
    assert summary(placers, *"xyz").reached("search", "goal") == (2 / 3, 10.0, 1.0)
    # What does not fit never is, whatever it costs.
    placers["search"]["z"] = [placed(fits=False)]
    assert summary(placers, *"xz").reached("search", "goal") == (0.5, np.inf, np.inf)


def test_episodes_draw_from_the_fixed_orders_alone() -> None:
    simulator = Simulator(example_problem(kinds=("k80", "k80")), 1)
    groups = simulator.problem.num_groups
    environment = FixedOrders.for_policy(simulator, Settings())
    environment.order_indices = [3, 7]
    drawn = set()
    for seed in range(5):
        generators = [np.random.default_rng((seed, worker)) for worker in range(4)]
        environment.reset(num_episodes=4, generators=generators)
        drawn |= {tuple(order) for order in environment.order.tolist()}
    assert drawn == {tuple(random_order(groups, index).tolist()) for index in (3, 7)}


def test_the_rnn_reads_the_groups_in_the_order_that_placeto_visits_them() -> None:
    problem = example_problem(kinds=("k80", "k80"))
    reordered = problem_in_order(problem, 5)
    order = random_order(problem.num_groups, 5)
    names = [problem.grouping.group_names[group] for group in order.tolist()]
    assert list(reordered.grouping.group_names) == names
    assert reordered.group_graph.topological_order.tolist() == list(range(problem.num_groups))
    placement = np.random.default_rng(0).integers(0, 2, (1, problem.num_groups)).astype(np.int32)
    runtime = Simulator(problem, 1).runtimes(placement)
    assert Simulator(reordered, 1).runtimes(placement[:, order]) == runtime


def test_a_policy_places_by_the_number_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(example_problem(kinds=("k80", "k80")), 1)
    policy = PlacementPolicy(2, Settings(hidden_units=8, message_rounds=1))
    orders: list[list[int]] = []
    monkeypatch.setattr(tasks, "run_greedily", lambda _, run: orders.append(run.order[0].tolist()))
    result = PlaceInOrder(policy, 5).place(simulator.problem, simulator)
    assert result.runtime == simulator.runtimes(result.placement[None])[0]
    assert orders == [random_order(simulator.problem.num_groups, 5).tolist()]


def test_a_plan_tells_no_updates_but_its_own() -> None:
    described = chosen_plan("generalise", "small", updates=7).described()
    assert (described["updates"], described["num_gpus"]) == (7, NUMBER_OF_GPUS)
    for name in ("settings", "paper"):
        assert "updates" not in described[name]
        assert "learning_rate_start" in described[name]
