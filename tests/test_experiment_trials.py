"""How the trials of an experiment run, are written down, and stop."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from experiment_tasks import Count, Die, Fail, RunUntilStopped, Wrong
from fork_join_graphs import fork_join_problem
from placeto.errors import InputError, RunError
from placeto.trials.orders import (
    FixedOrders,
    PlaceInOrder,
    problem_in_order,
    random_order,
)
from placeto.trials.placing_tasks import Labels
from placeto.trials.records import Episode, Failed, Placed, Record
from placeto.trials.running import run_here, run_in_processes
from placeto.trials.trial_log import Origin, TrialLog
from placeto.trials.trials import Results, StoppedError, Trial, Watch, Workspace
from placeto_experiments.paper.statistics import Summary
from placeto_policy import PlacementPolicy, Settings
from placeto_simulator import Simulator

LABELS: Labels = {"scheme": "a", "graph": "x", "seed": 0}


def never() -> bool:
    return False


def counted(record: Record) -> float:
    assert isinstance(record, Episode)
    return record.cost


def placed(**values: Any) -> Placed:
    """Return what a search came to in twenty placements and two seconds, with other values."""
    usual = Placed(
        **LABELS,
        runtime=4.0,
        cost=4.0,
        fits=True,
        evaluations=20,
        seconds=2.0,
        peak_memory=[1],
        evaluations_to_best=20,
        curve=[(1, 9.0), (10, 5.0), (20, 4.0)],
        placement=[0],
    )
    return msgspec.structs.replace(usual, **values)


def test_finished_trials_stay_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    log = TrialLog(path)
    records: dict[str, Record] = {
        "a": placed(cost=1.5),
        "b": Failed(**LABELS, error="none"),
    }
    for key, record in records.items():
        log.add(Origin(key=key), record)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        found = TrialLog(path)
        assert list(found.records) == ["a", "b"][: whole[:end].count(b"\n")]
        found.add(Origin(key="c"), placed(cost=None))  # goes on a line of its own
        assert TrialLog(path).records == found.records
    path.write_bytes(whole)
    assert TrialLog(path).records == records


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "truncated"),
        ("[]", "got `array`"),
        ("{}", "missing required field `key`"),
        ('"key"', "got `str`"),
        ("3", "got `int`"),
        ('{"key": "b"}', "missing required field `type`"),
        ('{"key": "b", "type": "luck"}', r"'luck' - at `\$.type`"),
        ('{"key": "b", "type": "failed"}', "missing required field `scheme`"),
        (
            '{"key": "b", "type": "failed", "scheme": 1, "graph": "", "seed": 0, "error": ""}',
            r"Expected `str`, got `int` - at `\$.scheme`",
        ),
    ],
)
def test_a_line_that_is_no_trial_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    TrialLog(path).add(Origin(key="a"), placed())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=f"line 2: expected .*{problem}") as caught:
        TrialLog(path)
    assert len(str(caught.value).splitlines()) == 1


def test_trials_run_in_their_order(tmp_path: Path) -> None:
    trials = [Trial(str(number), Count(number)) for number in range(3)]
    finished = list(run_here(trials, Workspace(tmp_path), Watch(never)))
    assert [(trial.key, counted(record)) for trial, record in finished] == [
        ("0", 0),
        ("1", 1),
        ("2", 2),
    ]


@pytest.mark.slow
def test_processes_wait_for_what_a_trial_needs(tmp_path: Path) -> None:
    trials = [
        Trial("last", Count(3), needs=("first", "second", "before")),
        Trial("first", Count(1)),
        Trial("second", Count(2), needs=("first",)),
    ]
    run = run_in_processes(trials, Workspace(tmp_path), Watch(never), 2, ["before"])
    assert [(trial.key, counted(record)) for trial, record in run] == [
        ("first", 0),
        ("second", 1),
        ("last", 2),
    ]


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    trials = [Trial("a", Count(1)), Trial("b", Die(), needs=("a",)), Trial("c", Count(2))]
    run = run_in_processes(trials, Workspace(tmp_path), Watch(never), 1, [])
    finished: list[str] = []
    keys = (trial.key for trial, _ in run)
    with pytest.raises(RunError, match="a process of a trial was killed; the same command goes on"):
        finished.extend(keys)
    assert finished == ["a"]


@pytest.mark.slow
def test_processes_stop_when_they_are_asked_to(tmp_path: Path) -> None:
    begun: Callable[[], bool] = (tmp_path / "begun").exists
    run = run_in_processes(
        [Trial("endless", RunUntilStopped())], Workspace(tmp_path), Watch(begun), 1, []
    )
    with pytest.raises(StoppedError):
        list(run)


def test_a_trial_that_fails_is_named_and_a_mistake_is_shown(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^one: policy: expected a better one, got this$"):
        list(run_here([Trial("one", Fail())], Workspace(tmp_path), Watch(never)))
    with pytest.raises(ValueError, match="a mistake"):
        list(run_here([Trial("one", Wrong())], Workspace(tmp_path), Watch(never)))


def test_means_are_over_graphs_and_spreads_over_seeds() -> None:
    costs = {("a", "x"): (2.0, 4.0), ("a", "y"): (6.0, 2.0), ("b", "x"): (1.0, 2.0)}
    records = [
        placed(scheme=scheme, graph=graph, seed=seed, cost=cost)
        for (scheme, graph), of_seeds in costs.items()
        for seed, cost in enumerate(of_seeds)
    ]
    records.append(placed(scheme="b", graph="y", seed=None, cost=4.0))
    summary = Summary(Results(records), ["x", "y"], [0, 1])
    assert summary.mean_cost("a").values == (4.0, 3.0)
    assert summary.mean_ratio("a", "b").values == ((2 + 1.5) / 2, (2 + 0.5) / 2)
    assert summary.all_costs("b").tolist() == [1.0, 4.0, 2.0, 4.0]


def test_graphs_that_fit_no_placement_of_any_scheme_can_be_left_out() -> None:
    fits = {("a", "x", 0): False, ("a", "x", 1): False, ("b", "x", 0): False, ("b", "x", 1): True}
    fits |= {(scheme, "y", seed): False for scheme in ("a", "b") for seed in (0, 1)}
    records = [
        placed(scheme=scheme, graph=graph, seed=seed, fits=fit)
        for (scheme, graph, seed), fit in fits.items()
    ]
    summary = Summary(Results(records), ["x", "y"], [0, 1])
    assert summary.where_some_fit(["a", "b"]).graphs == ["x"]
    assert summary.where_some_fit(["a"]).graphs == []


def test_how_far_a_search_goes_until_it_is_as_fast() -> None:
    records = [
        *(placed(scheme="search", graph=graph) for graph in "xy"),
        placed(scheme="goal", graph="x", cost=5.5),
        placed(scheme="goal", graph="y", cost=3.0),
    ]
    summary = Summary(Results(records), ["x", "y"], [0])
    assert summary.reached("search", "goal") == (0.5, 10.0, 1.0)
    never_so_fast = Summary(Results(records), ["y"], [0]).reached("search", "goal")
    assert never_so_fast[0] == 0
    assert np.isnan(never_so_fast[1:]).all()


def test_what_a_search_finds_in_as_many_placements_as_a_scheme_had() -> None:
    records = [
        *(placed(scheme="search", graph=graph) for graph in "xy"),
        placed(scheme="scheme", graph="x", cost=6.0, evaluations=9),
        placed(scheme="scheme", graph="y", cost=6.0, evaluations=19),
    ]
    summary = Summary(Results(records), ["x", "y"], [0])
    assert summary.mean_ratio_after("search", "scheme", "scheme").values == ((9 / 6 + 5 / 6) / 2,)
    assert summary.ahead("scheme", "search") == 0.5


def test_episodes_draw_from_the_fixed_orders_alone() -> None:
    simulator = Simulator(fork_join_problem(1), 1)
    groups = simulator.problem.num_groups
    environment = FixedOrders(simulator, Settings(), [3, 7])
    drawn = set()
    for seed in range(5):
        generators = [np.random.default_rng((seed, worker)) for worker in range(4)]
        environment.reset(num_episodes=4, generators=generators)
        drawn |= {tuple(order) for order in environment.order.tolist()}
    assert drawn == {tuple(random_order(groups, number).tolist()) for number in (3, 7)}


def test_the_rnn_reads_the_groups_in_the_order_that_placeto_visits_them() -> None:
    problem = fork_join_problem(1)
    other = problem_in_order(problem, 5)
    order = random_order(problem.num_groups, 5)
    names = [problem.grouping.group_names[group] for group in order.tolist()]
    assert list(other.grouping.group_names) == names
    assert other.group_graph.topological_order.tolist() == list(range(problem.num_groups))
    placement = np.random.default_rng(0).integers(0, 2, (1, problem.num_groups)).astype(np.int32)
    runtime = Simulator(problem, 1).runtimes(placement)
    assert Simulator(other, 1).runtimes(placement[:, order]) == runtime


def test_a_pass_in_another_order_is_evaluated_as_any_placement() -> None:
    simulator = Simulator(fork_join_problem(1), 1)
    policy = PlacementPolicy(2, Settings(hidden_units=8, message_rounds=1))
    result = PlaceInOrder(policy, 5).place(simulator.problem, simulator)
    assert result.runtime == simulator.runtimes(result.placement[None])[0]
    assert json.loads(json.dumps(result.evaluations)) == 1 + simulator.problem.num_groups
