"""Trials of an experiment: how they run, what makes one the same as a finished one, their page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment_folders import placed
from experiment_tasks import Count
from placeto.errors import InputError, RunError
from placeto.placing.placers import placer_spec
from placeto.progress import PlainProgress
from placeto.trials import folder as folder_module
from placeto.trials.folder import (
    TRIALS,
    ExperimentFolder,
    content_digest,
    experiment_folder,
    files_digest,
    trial_keys,
)
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Episode, Failed, Placed, Problem, TrialRecord
from placeto.trials.running import conduct, run_trials
from placeto.trials.trials import (
    Experiment,
    Graph,
    Page,
    Results,
    Task,
    Trial,
    Watch,
    Workspace,
    placing,
)
from placeto_baselines import RnnSettings
from placeto_experiments.paper import tasks
from placeto_experiments.paper.pages import Summary
from placeto_experiments.paper.tasks import (
    Bound,
    FixedOrders,
    PlaceAtRandom,
    PlaceInOrder,
    problem_in_order,
    random_order,
)
from placeto_graphs import PlacementProblem, load_problem, save_problem
from placeto_graphs.testing import example_problem
from placeto_policy import PlacementPolicy, Settings
from placeto_simulator import Simulator

GRAPH = Graph("x")
PROBLEM = example_problem(kinds=("k80", "k80"))


def place(name: str = "placeto", **named: Any) -> PlaceByName:
    values: dict[str, Any] = {"label": "a", "graph": GRAPH, "seed": 0, "budget": 10}
    return PlaceByName(name=name, **values | named)


# What makes a trial another one.


def key(problem: PlacementProblem, task: Task | None = None, *needs: Task) -> str:
    needed = [Trial(f"{number}", other) for number, other in enumerate(needs)]
    trial = Trial("place", task or place(), tuple(other.name for other in needed))
    return trial_keys([*needed, trial], {"x": content_digest(problem)})["place"]


def test_settings_and_what_is_needed_make_another_trial() -> None:
    others = [
        place(settings=Settings()),
        place(settings=replace(Settings(), discount=0.5)),
        place(settings=RnnSettings()),
        place(budget=11),
        place(seed=1),
        place(graph=Graph("x", order=1)),
        place("rnn"),
        *(task(label="a", graph=GRAPH, seed=0, budget=10) for task in (Bound, PlaceAtRandom)),
    ]
    first, *devices = PROBLEM.cluster.devices
    cluster = replace(PROBLEM.cluster, devices=(replace(first, memory_bytes=1), *devices))
    problems = [
        replace(PROBLEM, cluster=cluster),
        replace(PROBLEM, compute_time=2 * PROBLEM.compute_time),
        replace(PROBLEM, graph=replace(PROBLEM.graph, tensor_bytes=PROBLEM.graph.tensor_bytes + 1)),
    ]
    found = [key(PROBLEM), *map(key, problems), *(key(PROBLEM, other) for other in others)]
    found += [key(PROBLEM, place(), Count(number)) for number in (1, 2)]
    assert key(example_problem(kinds=("k80", "k80"))) == key(PROBLEM)
    assert len(set(found)) == len(found)


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
    before = trial_keys(trials, {"x": "problem"})
    for known in (files_digest, folder_module._version):
        monkeypatch.setattr(
            folder_module,
            known.__name__,
            lambda name, known=known: "" if name == changed else known(name),
        )
    after = trial_keys(trials, {"x": "problem"})
    assert {name for name in before if before[name] != after[name]} == expected


def test_only_content_is_told() -> None:
    named = [Problem(stem="a", source=source, cluster="b") for source in "ab"]
    several = [(1, 2), ("1", 2), (12,), {"a": (), "b": 1}, {"a": ("b",), "c": 1}, *named]
    assert len({content_digest(value) for value in several}) == len(several)
    assert content_digest(np.float64(1.5)) == content_digest(1.5)
    assert content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})
    assert content_digest(np.zeros(2)) != content_digest(np.zeros(2, np.int64))
    for untold in (object(), np.array([object()])):
        with pytest.raises(TypeError, match="content can be told"):
            content_digest(untold)
    with pytest.raises(KeyError):
        content_digest(GRAPH, {"y": "another"})


# How trials run.


def run(folder: Path, *trials: Trial, jobs: int = 1) -> Iterator[tuple[str, str]]:
    """Run trials; yield the name of each, and its error if it fails."""
    found = run_trials(trials, Workspace(folder), Watch(lambda: False), jobs=jobs, done=["before"])
    for trial, record in found:
        assert isinstance(record, Failed | Episode)
        yield trial.name, record.error if isinstance(record, Failed) else ""


def test_a_failed_trial_ends_none_but_those_that_need_it(tmp_path: Path) -> None:
    trials = [
        Trial("fails", Count(0, "refused")),
        Trial("beside", Count(1)),
        Trial("needs", Count(2), ("fails",)),
        Trial("last", Count(3), ("beside", "before")),
    ]
    error = "policy: expected a better one, got this"
    assert list(run(tmp_path, *trials)) == [("fails", error), ("beside", ""), ("last", "")]
    with pytest.raises(ValueError, match="a mistake"):
        list(run(tmp_path, Trial("wrong", Count(0, "mistaken"))))


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    one, killed = Trial("a", Count(1)), Trial("b", Count(0, "killed"), ("a",))
    found = run(tmp_path, one, killed, Trial("c", Count(2), ("b",)), jobs=2)
    assert next(found) == ("a", "")
    with pytest.raises(RunError, match="a process of a trial was killed; the same command resumes"):
        next(found)


# The folder of an experiment.


def experiment(path: Path, *names: str, more: Trial | None = None) -> Experiment:
    """Return the experiment of some placers on the problem of a file."""
    trials = [
        Trial(name, PlaceByName(label=name, graph=GRAPH, seed=None, name=name)) for name in names
    ]
    return Experiment(
        name="experiment",
        title="Placers",
        options={},
        problems={"x": lambda: load_problem(path)},
        trials=[*trials, *([more] if more else [])],
        page=lambda results: Page([str(results.records["single"])]),
    )


def conducted(folder: Path, chosen: Experiment, *, force: bool = False) -> list[dict[str, Any]]:
    """Run what is left of an experiment; return the lines of its folder."""
    with experiment_folder(folder, chosen, force=force) as opened:
        conduct(chosen, opened, PlainProgress(None), jobs=1)
    return [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]


def test_a_folder_goes_on_with_what_is_the_same_and_nothing_else(tmp_path: Path) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    first = conducted(folder, experiment(path, "single"))
    page = (folder / "results.md").read_text()
    second = conducted(folder, experiment(path, "single", "heft"))
    assert second[:1] == first
    assert [line["name"] for line in second] == ["single", "heft"]
    save_problem(replace(PROBLEM, compute_time=2 * PROBLEM.compute_time), path)
    third = conducted(folder, experiment(path, "single"))  # the file has another content
    assert third[:2] == second
    assert third[2]["runtime"] > first[0]["runtime"]
    assert str(third[2]["runtime"]) in (folder / "results.md").read_text()
    save_problem(PROBLEM, path)
    assert conducted(folder, experiment(path, "single")) == third  # and its first one again
    assert (folder / "results.md").read_text() == page
    problem = folder / "problems" / "x.json.gz"
    written = problem.stat().st_mtime_ns
    conducted(folder, experiment(path, "single"))  # with nothing left, as it was
    assert problem.stat().st_mtime_ns == written
    assert load_problem(problem) == PROBLEM
    assert len(conducted(folder, experiment(path, "single"), force=True)) == 1


def test_what_failed_is_tried_again_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    failing = experiment(path, "single", more=Trial("fails", Count(0, "refused")))
    for _ in range(2):  # the same failure stands there once
        with pytest.raises(RunError, match=r"^fails: policy: expected a better one, got this$"):
            conducted(folder, failing)
    assert not (folder / "results.md").exists()
    lines = conducted(folder, experiment(path, "single", more=Trial("fails", Count(1))))
    assert [line["type"] for line in lines] == ["placed", "failed", "episode"]
    cannot = place(budget=1, settings=Settings())
    unable = experiment(path, "single", more=Trial("no", cannot, may_fail=True))
    lines = conducted(folder, unable)
    monkeypatch.setattr(PlaceByName, "spec", lambda *_: placer_spec("single"))
    *before, last = conducted(folder, unable)
    assert (before, last["type"]) == (lines, "placed")


LETTERS = [Trial(name, Count(number)) for number, name in enumerate("abc")]


@contextmanager
def opened(
    folder: Path, name: str = "letters", *, force: bool = False
) -> Iterator[ExperimentFolder]:
    """Open the folder of an experiment without problems."""
    chosen = Experiment(name, "", {}, {}, LETTERS, page=lambda _: Page([]))
    with experiment_folder(folder, chosen, force=force) as found:
        found.make_problems(lambda _: None)
        yield found


def test_finished_trials_stay_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    records: list[TrialRecord] = [placed(cost=1.5), Failed(error="none"), placed(cost=None)]
    with opened(tmp_path) as folder:
        for trial, record in zip(LETTERS[:2], records, strict=False):
            folder.add(trial, record, 1.0)
    whole = (tmp_path / TRIALS).read_bytes()
    for end in (*range(0, len(whole), 97), len(whole)):
        (tmp_path / TRIALS).write_bytes(whole[:end])
        left = dict(list(zip("ab", records, strict=False))[: whole[:end].count(b"\n")])
        with opened(tmp_path) as folder:
            assert folder.results.records == left
            folder.add(LETTERS[2], records[2], 1.0)  # goes on a line of its own
        with opened(tmp_path) as folder:
            assert folder.results.records == left | {"c": records[2]}
            assert folder.finished.keys() == {*left, "c"} - {"b"}
    with (tmp_path / TRIALS).open("a") as file:
        file.write('{"key": "b", "name": "b", "type": "luck"}\n')
    with pytest.raises(InputError, match=r"line 4: .*'luck' - at `\$.type`"), opened(tmp_path):
        pass


def test_a_folder_is_that_of_one_process_and_one_experiment(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()  # a process was killed at once

    def open_again() -> None:
        with opened(tmp_path, force=True):
            pass

    with opened(tmp_path), ThreadPoolExecutor(1) as pool:
        error = pool.submit(open_again).exception()
    assert str(error) == f"{tmp_path}: another process works in it; name another folder"
    description = tmp_path / "experiment.json"
    for version, problem in (
        (4, "begun as another experiment: letters, not other"),
        (2, "expected version 4, got 2.* --force begins anew"),
    ):
        told = json.loads(description.read_text()) | {"version": version}
        description.write_text(json.dumps(told))
        with pytest.raises(InputError, match=problem), opened(tmp_path, "other"):
            pass
    with opened(tmp_path, "other", force=True) as folder:
        assert folder.finished == {}


# What a page tells of them.


def summary(
    placers: Mapping[str, Mapping[str, Placed | Sequence[Placed]]], *graphs: str
) -> Summary:
    """Return the summary of records by placer and graph: one for each seed, or one of all seeds."""
    records = {
        placing(Count(0), placer, Graph(graph), seed).name: record
        for placer, of_graphs in placers.items()
        for graph, found in of_graphs.items()
        for seed, record in ([(None, found)] if isinstance(found, Placed) else enumerate(found))
    }
    seeds = {name[4] for name in records if name.startswith("seed")}
    return Summary(Results(records), graphs or ["x", "y"], sorted(map(int, seeds)))


def test_means_are_over_graphs_and_spreads_over_seeds() -> None:
    costs = {"x": (2.0, 4.0), "y": (6.0, 2.0)}
    found = summary(
        {
            "a": {graph: [placed(cost=cost) for cost in of] for graph, of in costs.items()},
            "b": {"x": [placed(cost=1.0), placed(cost=2.0)], "y": placed(cost=4.0)},
            "c": {"x": [placed(fits=False), placed()], "y": placed(cost=None, fits=False)},
        }
    )
    assert [*map(found.mean_cost, "ac")] == [[4.0, 3.0], [np.inf, np.inf]]  # it cannot run
    assert found.mean_ratio("a", "b") == [(2 + 1.5) / 2, (2 + 0.5) / 2]
    assert found.all_values("b").tolist() == [1.0, 4.0, 2.0, 4.0]
    assert found.where_some_fit(["c"]).graphs == ["x"]
    assert found.where_some_fit(["c", "b"]).graphs == ["x", "y"]


def test_how_far_a_search_goes_until_it_is_as_fast() -> None:
    goals = {"x": [placed(cost=5.5)], "y": [placed(cost=3.0)], "z": [placed(cost=9.5)]}
    placers = {"search": {name: [placed()] for name in goals}, "goal": goals}
    for graphs, expected in (("x", (1.0, 10.0, 1.0)), ("xz", (1.0, 5.5, 0.55))):
        assert summary(placers, *graphs).reached("search", "goal") == expected
    # One is never, and counts.
    assert summary(placers, *"xyz").reached("search", "goal") == (2 / 3, 10.0, 1.0)


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
    assert drawn == {tuple(random_order(groups, number).tolist()) for number in (3, 7)}


def test_the_rnn_reads_the_groups_in_the_order_that_placeto_visits_them() -> None:
    problem = example_problem(kinds=("k80", "k80"))
    other = problem_in_order(problem, 5)
    order = random_order(problem.num_groups, 5)
    names = [problem.grouping.group_names[group] for group in order.tolist()]
    assert list(other.grouping.group_names) == names
    assert other.group_graph.topological_order.tolist() == list(range(problem.num_groups))
    placement = np.random.default_rng(0).integers(0, 2, (1, problem.num_groups)).astype(np.int32)
    runtime = Simulator(problem, 1).runtimes(placement)
    assert Simulator(other, 1).runtimes(placement[:, order]) == runtime


def test_a_policy_places_by_the_number_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(example_problem(kinds=("k80", "k80")), 1)
    policy = PlacementPolicy(2, Settings(hidden_units=8, message_rounds=1))
    seen: list[list[int]] = []
    monkeypatch.setattr(tasks, "run_greedily", lambda _, run: seen.append(run.order[0].tolist()))
    result = PlaceInOrder(policy, 5).place(simulator.problem, simulator)
    assert result.runtime == simulator.runtimes(result.placement[None])[0]
    assert seen == [random_order(simulator.problem.num_groups, 5).tolist()]
