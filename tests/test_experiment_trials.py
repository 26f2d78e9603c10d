"""Trials of an experiment: how they run, what makes one the same as a finished one, their page."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any, ClassVar

import numpy as np
import pytest

from experiment_folders import placed
from experiment_tasks import Count, Die, Fail, Wrong
from fork_join_graphs import fork_join_problem
from placeto.errors import InputError, RunError
from placeto.placing.placers import placer_spec
from placeto.progress import PlainProgress
from placeto.trials import running, store
from placeto.trials.folder import experiment_folder
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Episode, Failed, Placed, Record
from placeto.trials.running import conduct, run_trials
from placeto.trials.store import Origin, TrialStore, content_digest, files_digest, trial_keys
from placeto.trials.trials import (
    Experiment,
    Graph,
    Page,
    Results,
    StoppedError,
    Task,
    Trial,
    Watch,
    Workspace,
    placing,
)
from placeto_baselines import RnnSettings
from placeto_experiments.paper.fidelity import fidelity
from placeto_experiments.paper.fidelity_tasks import RunnableModel, profiling
from placeto_experiments.paper.orders import (
    FixedOrders,
    PlaceInOrder,
    problem_in_order,
    random_order,
)
from placeto_experiments.paper.pages import Summary
from placeto_experiments.paper.plan import chosen_plan
from placeto_experiments.paper.table1 import PlaceFiner
from placeto_experiments.paper.tasks import Bound, PlaceAtRandom
from placeto_graphs import (
    Device,
    PlacementProblem,
    load_problem,
    save_problem,
)
from placeto_policy import PlacementPolicy, Settings
from placeto_simulator import Simulator

GRAPH = Graph("x")
PROBLEM = fork_join_problem(1)


def never() -> bool:
    return False


# What the store holds.


def test_finished_trials_stay_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    written = TrialStore(path)
    records: dict[str, Record] = {"a": placed(cost=1.5), "b": Failed(error="none")}
    for key, record in records.items():
        written.put(Origin(key=key, name=key), record)
    whole = path.read_bytes()
    for end in range(0, len(whole), 29):
        path.write_bytes(whole[:end])
        found = TrialStore(path)
        assert list(found.records) == ["a", "b"][: whole[:end].count(b"\n")]
        found.put(Origin(key="c", name="c"), placed(cost=None))  # goes on a line of its own
        assert TrialStore(path).records == found.records
    path.write_bytes(whole)
    assert TrialStore(path).records == records


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "truncated"),
        ("[]", "got `array`"),
        ("{}", "missing required field `key`"),
        ('{"key": "b", "name": "b", "type": "luck"}', r"'luck' - at `\$.type`"),
        (
            '{"key": "b", "name": "b", "type": "failed", "error": 1}',
            r"Expected `str`, got `int` - at `\$.error`",
        ),
    ],
)
def test_a_line_that_is_no_trial_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    TrialStore(path).put(Origin(key="a", name="a"), placed())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=f"line 2: expected .*{problem}") as caught:
        TrialStore(path)
    assert len(str(caught.value).splitlines()) == 1


# What makes a trial another one.


def place(name: str = "placeto", **named: Any) -> PlaceByName:
    values: dict[str, Any] = {"label": "a", "graph": GRAPH, "seed": 0, "budget": 10}
    return PlaceByName(name=name, **values | named)


def key(problem: PlacementProblem, task: Task | None = None) -> str:
    trial = Trial("place", task or place())
    return trial_keys([trial], {"x": content_digest(problem)})["place"]


def changed(value: Any, name: str, other: object) -> Any:
    """Return a copy with another value of a field, whatever is valid there."""
    found = copy(value)
    object.__setattr__(found, name, other)
    return found


def test_each_field_of_a_problem_makes_another_trial() -> None:
    usual = key(fork_join_problem(1))
    assert usual == key(PROBLEM)
    cluster = PROBLEM.cluster
    first, *others = cluster.devices

    def on(device: Device) -> Any:
        devices = changed(cluster, "devices", (device, *others))
        return changed(PROBLEM, "cluster", devices)

    parts: list[tuple[Any, Callable[[Any], PlacementProblem]]] = [
        (PROBLEM, lambda problem: problem),
        (PROBLEM.graph, partial(changed, PROBLEM, "graph")),
        (PROBLEM.grouping, partial(changed, PROBLEM, "grouping")),
        (cluster, partial(changed, PROBLEM, "cluster")),
        (first, on),
    ]
    for part, problem_with in parts:
        for field in fields(part):
            another = problem_with(changed(part, field.name, "another"))
            assert key(another) != usual, field.name


def test_settings_make_another_trial() -> None:
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
    keys = [key(PROBLEM), *(key(PROBLEM, other) for other in others)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("placeto_policy", {"placeto", "finer", "measured"}),
        ("placeto_capture", {"placeto", "finer", "measured"}),  # CPU only is placed by its times
        ("placeto_experiments", {"finer", "measured"}),  # those that have a task of this package
        ("placeto_execution", {"measured"}),
        ("torch", {"placeto", "finer", "measured"}),
    ],
)
def test_a_change_of_what_runs_a_trial_makes_another_one(
    changed: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finer = PlaceFiner(label="no", graph=GRAPH, seed=0, name="multilevel")
    trials = [
        Trial("placeto", place()),
        Trial("finer", finer),
        replace(profiling(GRAPH, RunnableModel("nmt-2", ())), name="measured"),
    ]
    before = trial_keys(trials, {"x": "problem"})
    for known in (files_digest, store._version):
        monkeypatch.setattr(
            store, known.__name__, lambda name, known=known: "" if name == changed else known(name)
        )
    after = trial_keys(trials, {"x": "problem"})
    assert {name for name in before if before[name] != after[name]} == expected


def test_an_edit_of_any_file_of_a_package_is_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "edited_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/code.py", "policy.safetensors"):
        (package / name).write_text("")
    digests = [files_digest.__wrapped__("edited_package")]
    assert files_digest.__wrapped__("edited_package") == digests[0]  # imported, so compiled
    for name in ("inner/code.py", "policy.safetensors", "inner/new.py"):
        (package / name).write_text("1")
        digests.append(files_digest.__wrapped__("edited_package"))
    assert len(set(digests)) == 4


def test_a_trial_changes_with_those_that_it_needs() -> None:
    def keys(policy: Task) -> dict[str, str]:
        needing = Trial("needs", Count(1), ("policy",))
        return trial_keys([Trial("policy", policy), needing, Trial("other", Count(2))], {})

    one, other = keys(Count(3)), keys(Count(4))
    assert one["other"] == other["other"]
    assert one["needs"] != other["needs"]


def test_what_is_measured_is_another_trial_on_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = profiling(GRAPH, RunnableModel("nmt-2", ()))
    trials = [profile, Trial("learn", Count(1), (profile.name,)), Trial("simulated", Count(2))]
    here = trial_keys(trials, {})
    monkeypatch.setattr("platform.node", lambda: "another machine")
    there = trial_keys(trials, {})
    assert {name for name in here if here[name] != there[name]} == {profile.name, "learn"}
    files = {Workspace(Path(), keys).problem_file("x") for keys in (here, there)}
    assert len(files) == 2  # neither takes what the other one has measured
    assert all(one.measured for one in fidelity([], chosen_plan("fidelity", "smoke")).trials)


def test_only_content_is_told() -> None:
    assert content_digest((1, 2)) != content_digest(("1", 2)) != content_digest((12,))
    assert content_digest({"a": (), "b": 1}) != content_digest({"a": ("b",), "c": 1})
    assert content_digest(np.float64(1.5)) == content_digest(1.5)
    for untold in (object(), np.array([object()])):
        with pytest.raises(TypeError, match="content can be told"):
            content_digest(untold)
    with pytest.raises(KeyError):
        content_digest(GRAPH, {"y": "another"})


# How trials run.


def counted(run: Iterator[tuple[Trial, Record]]) -> Iterator[tuple[str, float | None]]:
    for trial, record in run:
        assert isinstance(record, Episode)
        yield trial.name, record.cost


def test_a_failed_trial_ends_none_but_those_that_need_it(tmp_path: Path) -> None:
    trials = [
        Trial("fails", Fail()),
        Trial("beside", Count(1)),
        Trial("needs", Count(2), ("fails",)),
        Trial("fails, too", Fail()),
        Trial("last", Count(3), ("beside", "before")),
    ]
    run = run_trials(trials, Workspace(tmp_path), Watch(never), done=["before"])
    finished: list[str] = []
    with pytest.raises(RunError, match=r"^fails: policy: expected a better one, got this \(and 1"):
        finished.extend(name for name, _ in counted(run))
    assert finished == ["beside", "last"]


def test_a_mistake_in_the_code_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mistake"):
        list(run_trials([Trial("one", Wrong())], Workspace(tmp_path), Watch(never)))


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    trials = [Trial("a", Count(1)), Trial("b", Die(), needs=("a",)), Trial("c", Count(2), ("b",))]
    run = run_trials(trials, Workspace(tmp_path), Watch(never), jobs=2)
    finished: list[str] = []
    with pytest.raises(RunError, match="a process of a trial was killed; the same command resumes"):
        finished.extend(name for name, _ in counted(run))
    assert finished == ["a"]


def test_trials_stop_when_they_are_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads in place of processes; without a stop the trials end after a while, too."""

    @dataclass(frozen=True)
    class RunUntilStopped:
        kind: ClassVar[str] = "endless"

        def run(self, workspace: Workspace, watch: Watch) -> Record:
            began = time.monotonic()
            try:
                while time.monotonic() < began + 10:
                    (workspace.path / "begun").touch()
                    watch.update("running")
                    time.sleep(0.01)
            except StoppedError:
                (workspace.path / f"stopped-{get_ident()}").touch()
                raise
            raise AssertionError

    @contextmanager
    def threads(jobs: int, workspace: Workspace) -> Iterator[Any]:
        stopping = Event()
        monkeypatch.setattr(running, "_stopping", [stopping])
        with ThreadPoolExecutor(jobs) as pool:
            run = partial(running._run_in_process, workspace=workspace)
            yield running._Runner(partial(pool.submit, run), stopping.set)

    monkeypatch.setattr(running, "_processes", threads)
    begun: Callable[[], bool] = (tmp_path / "begun").exists
    trials = [Trial("endless", RunUntilStopped()), Trial("other", RunUntilStopped())]
    with pytest.raises(StoppedError):
        list(run_trials(trials, Workspace(tmp_path), Watch(begun), jobs=2))
    assert len(list(tmp_path.glob("stopped-*"))) == 2


# The folder of an experiment.


def experiment(path: Path, *names: str, more: Collection[Trial] = ()) -> Experiment:
    """Return the experiment of some placers on the problem of a file."""
    trials = [
        Trial(name, PlaceByName(label=name, graph=GRAPH, seed=None, name=name)) for name in names
    ]
    return Experiment(
        name="experiment",
        title="Placers",
        options={},
        problems={"x": lambda: load_problem(path)},
        trials=[*trials, *more],
        page=lambda results: Page([str(results.records["single"])]),
    )


@contextmanager
def conducted(folder: Path, chosen: Experiment, *, force: bool = False) -> Iterator[list[Any]]:
    """Run what is left of an experiment; give the lines of its folder."""
    with experiment_folder(folder, chosen, force=force) as opened:
        conduct(chosen, opened, PlainProgress(None), jobs=1)
    yield [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_a_folder_goes_on_with_what_is_the_same_and_nothing_else(tmp_path: Path) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    with conducted(folder, experiment(path, "single")) as first:
        page = (folder / "results.md").read_text()
    with conducted(folder, experiment(path, "single", "heft")) as second:
        assert second[:1] == first
        assert [line["name"] for line in second] == ["single", "heft"]
    save_problem(replace(PROBLEM, compute_time=2 * PROBLEM.compute_time), path)
    with conducted(folder, experiment(path, "single")) as third:  # the file has another content
        assert third[:2] == second
        assert third[2]["runtime"] > first[0]["runtime"]
        assert str(third[2]["runtime"]) in (folder / "results.md").read_text()
    save_problem(PROBLEM, path)
    with conducted(folder, experiment(path, "single")) as fourth:  # and its first one again
        assert fourth == third
        assert (folder / "results.md").read_text() == page
    written = (folder / "problems" / "x.json.gz").stat().st_mtime_ns
    with conducted(folder, experiment(path, "single")):  # with nothing left, as it was
        assert (folder / "problems" / "x.json.gz").stat().st_mtime_ns == written
    assert load_problem(folder / "problems" / "x.json.gz") == PROBLEM
    with conducted(folder, experiment(path, "single"), force=True) as anew:
        assert len(anew) == 1


def test_what_failed_is_tried_again_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "problem.json", tmp_path / "results"
    save_problem(PROBLEM, path)
    failing = experiment(path, "single", more=[Trial("fails", Fail())])
    with pytest.raises(RunError, match="fails: policy"), conducted(folder, failing):
        pass
    assert not (folder / "results.md").exists()
    mended = experiment(path, "single", more=[Trial("fails", Count(1))])
    with conducted(folder, mended) as lines:
        assert [line["name"] for line in lines] == ["single", "fails"]
        assert [line["type"] for line in lines] == ["placed", "episode"]
    cannot = place(budget=1, settings=Settings())
    unable = experiment(path, "single", more=[Trial("no", cannot, may_fail=True)])
    for _ in range(2):  # the same failure stands there once
        with conducted(folder, unable) as lines:
            assert [line["type"] for line in lines] == ["placed", "episode", "failed"]
    with monkeypatch.context() as patched:
        patched.setattr(PlaceByName, "spec", lambda *_: placer_spec("single"))
        with conducted(folder, unable) as lines:
            assert [line["type"] for line in lines] == ["placed", "episode", "failed", "placed"]
    with conducted(folder, unable) as again:  # from now on it is finished
        assert again == lines


def test_a_folder_is_that_of_one_process_and_one_experiment(tmp_path: Path) -> None:
    folder, one = tmp_path / "results", experiment(tmp_path / "problem.json")
    caught: list[str] = []

    def open_again() -> None:
        with pytest.raises(InputError) as error, experiment_folder(folder, one, force=True):
            pass
        caught.append(str(error.value))

    with experiment_folder(folder, one, force=False):
        other = Thread(target=open_again)
        other.start()
        other.join()
    assert caught == [f"{folder}: another process works in it; name another folder"]
    another = replace(one, name="other")
    with (
        pytest.raises(InputError, match="begun as another experiment: experiment, not other"),
        experiment_folder(folder, another, force=False),
    ):
        pass
    with experiment_folder(folder, another, force=True) as opened:
        assert opened.finished == {}


def test_a_folder_of_a_process_that_was_killed_at_once_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with experiment_folder(tmp_path, experiment(tmp_path / "problem.json"), force=False):
        assert (tmp_path / "experiment.json").exists()


def test_a_folder_of_an_earlier_version_is_not_gone_on_with(tmp_path: Path) -> None:
    old = {"format": "placeto-experiment", "version": 2, "experiment": "experiment"}
    (tmp_path / "experiment.json").write_text(json.dumps(old | {"options": {}, "trials": 1}))
    one = experiment(tmp_path / "problem.json")
    with (
        pytest.raises(InputError, match=r"expected version 4, got 2.* --force begins anew"),
        experiment_folder(tmp_path, one, force=False),
    ):
        pass
    with experiment_folder(tmp_path, one, force=True):
        pass


# What a page tells of them.


def summary(records: dict[tuple[str, str, int | None], Placed], *graphs: str) -> Summary:
    """Return the summary of records by placer, graph and seed, which are as many as there are."""
    trials = {
        placing(Count(0), placer, Graph(graph), seed).name: record
        for (placer, graph, seed), record in records.items()
    }
    seeds = {seed for _, _, seed in records if seed is not None}
    return Summary(Results(trials), graphs or ["x", "y"], sorted(seeds))


def test_means_are_over_graphs_and_spreads_over_seeds() -> None:
    costs = {("a", "x"): (2.0, 4.0), ("a", "y"): (6.0, 2.0), ("b", "x"): (1.0, 2.0)}
    records: dict[tuple[str, str, int | None], Placed] = {
        (*placer, seed): placed(cost=cost)
        for placer, of_seeds in costs.items()
        for seed, cost in enumerate(of_seeds)
    }
    found = summary(records | {("b", "y", None): placed(cost=4.0)})
    assert found.mean_cost("a").values == (4.0, 3.0)
    assert found.mean_ratio("a", "b").values == ((2 + 1.5) / 2, (2 + 0.5) / 2)
    assert found.all_values("b").tolist() == [1.0, 4.0, 2.0, 4.0]


def test_graphs_that_fit_no_placement_of_any_placer_can_be_left_out() -> None:
    found = summary(
        {
            (placer, graph, seed): placed(fits=(placer, graph, seed) == ("b", "x", 1))
            for placer in "ab"
            for graph in "xy"
            for seed in (0, 1)
        }
    )
    assert found.where_some_fit(["a", "b"]).graphs == ["x"]
    assert found.where_some_fit(["a"]).graphs == []


def test_how_far_a_search_goes_until_it_is_as_fast() -> None:
    records: dict[tuple[str, str, int | None], Placed] = {
        (placer, graph, 0): placed(cost=cost)
        for graph, cost in {"x": 5.5, "y": 3.0, "z": 9.5}.items()
        for placer, cost in {"search": 4.0, "goal": cost}.items()
    }
    assert summary(records, "x").reached("search", "goal") == (1.0, 10.0, 1.0)
    assert summary(records, "x", "z").reached("search", "goal") == (1.0, 5.5, 0.55)
    share, *others = summary(records, "x", "y", "z").reached("search", "goal")
    assert (share, others) == (2 / 3, [10.0, 1.0])  # the third is never, and counts
    assert summary(records, "x", "y").reached("search", "goal") == (0.5, np.inf, np.inf)


def test_what_a_search_finds_in_as_many_placements_as_a_placer_had() -> None:
    records: dict[tuple[str, str, int | None], Placed] = {
        ("search", "x", 0): placed(),
        ("search", "y", 0): placed(),
        ("placer", "x", 0): placed(cost=6.0, evaluations=9),
        ("placer", "y", 0): placed(cost=6.0, evaluations=19),
    }
    found = summary(records)
    assert found.mean_ratio_after("search", "placer", "placer").values == ((9 / 6 + 5 / 6) / 2,)
    assert found.ahead("placer", "search") == 0.5


def test_episodes_draw_from_the_fixed_orders_alone() -> None:
    simulator = Simulator(fork_join_problem(1), 1)
    groups = simulator.problem.num_groups
    environment = FixedOrders.for_policy(simulator, Settings())
    environment.numbers = [3, 7]
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
