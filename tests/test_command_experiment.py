"""``placeto experiment``: every experiment at its smallest, interrupted, resumed, refused."""

import json
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import msgspec
import numpy as np
import pytest

from command_runs import build_profile, check_picture, fail, start_paused, succeed
from fork_join_graphs import fork_join_problem
from placeto.placing.placers import PLACER_NAMES, PLACERS
from placeto.progress import clock
from placeto.texts import share_text
from placeto.trials.folder import TRIALS
from placeto.trials.records import Failed, Trained
from placeto.trials.store import TrialStore, content_digest
from placeto.trials.trials import (
    Experiment,
    Graph,
    Results,
    StoppedError,
    Watch,
    Workspace,
)
from placeto_experiments.command import experiment as experiment_group
from placeto_experiments.options import Run, chosen_plan
from placeto_experiments.paper import fidelity_tasks
from placeto_experiments.paper.generalise import generalise
from placeto_experiments.paper.rewards import rewards
from placeto_experiments.paper.table1 import FINER, SEARCHES, table1
from placeto_experiments.paper.training_tasks import TrainPlaceto
from placeto_graphs import load_problem, save_problem
from placeto_policy import PlacementPolicy, Settings, load_policy, preset

SMOKE = "--scale=smoke"
UPDATES = 5  # of the scale
FAMILY_SCHEMES = [
    "placeto-zero-shot",
    "placeto-zero-shot-sampled",
    "placeto-optimized",
    "published-zero-shot",
    "pretrained",
    "rnn-zero-shot",
    "rnn-optimized",
    "random",
    "random-search",
    "scotch",
    "local-search",
    "multilevel",
]


def trials_of(folder: Path, *, clocks: bool = False) -> dict[str, dict[str, Any]]:
    """Return the trials by name, without what a clock said."""
    trials = {}
    for line in (folder / TRIALS).read_text().splitlines():
        record = json.loads(line)
        if not clocks:
            record.pop("seconds", None)
            record.pop("took", None)
        trials[record.pop("name")] = record
    return trials


def graphs_of(folder: Path) -> set[str]:
    """Return the graphs that were placed."""
    return {name.split("/")[1] for name in trials_of(folder) if name.count("/") == 2}


def policy_of(folder: Path, name: str) -> PlacementPolicy:
    """Return the policy of a name, behind which its file has a key."""
    (path,) = (folder / "policies").glob(f"{name}-????????????????.safetensors")
    return load_policy(path)


def check_complete(folder: Path, pictures: int, width: int = 900) -> str:
    """Check that a folder has all that an experiment leaves; return its page."""
    description = json.loads((folder / "experiment.json").read_text())
    trials = trials_of(folder, clocks=True)
    assert len(trials) == description["trials"]
    for record in trials.values():
        assert record.get("cost") is None or record["cost"] > 0
        assert len(record.get("curve", [])) <= 200
    page = (folder / "results.md").read_text()
    drawn = sorted(path.name for path in folder.glob("*.png"))
    assert len(drawn) == pictures
    for name in drawn:
        assert f"]({name})" in page
        check_picture(folder / name, width)
    for line in page.splitlines():
        if line.startswith("|"):
            assert "nan" not in line
    for problem in (folder / "problems").iterdir():
        assert load_problem(problem).num_groups <= 12
    return page


def cell(page: str, row: str, column: int) -> str:
    """Return a cell of the first row that begins so."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return line.split(" | ")[column].strip(" |")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of generalisation over small members of a family."""
    folder = tmp_path_factory.mktemp("generalise") / "results"
    succeed("experiment", "generalise", "cifar10", SMOKE, "-o", folder)
    return folder


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two experiments that one command ran, one of them on real workers."""
    folder = tmp_path_factory.mktemp("all") / "results"
    succeed("experiment", "all", "rewards", "measured-curves", SMOKE, "-o", folder)
    return folder


def test_generalisation_is_told_of_unseen_graphs(family: Path) -> None:
    page = check_complete(family, pictures=1, width=1300)
    trials = trials_of(family)
    graphs = sorted(graphs_of(family))
    assert len(graphs) == 2
    for graph in graphs:
        bound = trials[f"every-seed/{graph}/lower-bound"]["cost"]
        single = trials[f"every-seed/{graph}/single"]["cost"]
        costs = {name: trials[f"seed0/{graph}/{name}"]["cost"] for name in FAMILY_SCHEMES}
        assert all(bound <= cost for cost in (*costs.values(), single))
        assert costs["placeto-zero-shot-sampled"] <= costs["placeto-zero-shot"]
        assert costs["random-search"] < costs["random"]
    ratios = [
        trials[f"seed0/{graph}/placeto-zero-shot"]["cost"]
        / trials[f"seed0/{graph}/placeto-optimized"]["cost"]
        for graph in graphs
    ]
    told = cell(page, "Placeto zero-shot, greedy", 2)
    assert told.split()[0] == f"{np.mean(ratios):.3f}"
    assert "| Random, one placement |" in page
    assert "Addanki et al. (2019)" in page


def test_a_family_of_a_controller_is_generalised_over() -> None:
    chosen = generalise("cifar10-enas", chosen_plan("generalise", "smoke"))
    assert all(name.startswith("cifar10-enas-") for name in chosen.problems)
    name = next(name for name in chosen.problems if name.endswith("-grouping-1"))
    assert chosen.problems[name]().num_groups == 8


def test_fidelity_is_told_of_placements_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    few = {"PROFILE_RUNS": 2, "SEARCHES": ("expert", "local-search")}
    with monkeypatch.context() as patched:
        for name, value in (few | {"NUM_RANDOM": 1, "NUM_NEIGHBOURS": 1}).items():
            patched.setattr(fidelity_tasks, name, value)
        succeed("experiment", "fidelity", SMOKE, "-o", folder)
    page = (folder / "results.md").read_text()
    measuring, record = trials_of(folder).values()
    assert measuring["ops"] == record["ops"]
    rows = record["rows"]
    assert len(rows) == len({row["placement"] for row in rows}) == 10
    (problem,) = (folder / "problems").iterdir()
    placements = fidelity_tasks.placements_of(load_problem(problem))
    assert len(placements) == len({name for name, _ in placements}) == 25
    (single,) = (row for row in rows if row["placement"] == "single")
    assert all(row["measured"] > 0 for row in rows)
    assert single["slowed"] == single["simulated"]
    assert any(row["slowed"] > row["simulated"] for row in rows)
    errors = [abs(row["simulated"] / row["measured"] - 1) for row in rows]
    assert cell(page, "nmt-2", 3) == share_text(np.mean(errors))
    refused = fail("experiment", "fidelity", "nmt-3", SMOKE, "-o", tmp_path / "other")
    assert "nmt-3: expected one of nmt-2" in refused


def test_policies_learn_on_workers_that_run(everything: Path, tmp_path: Path) -> None:
    folder = everything / "measured-curves"
    page = (folder / "results.md").read_text()
    records = {name.split("/")[-1]: record for name, record in trials_of(folder).items()}
    assert set(records) == {"nmt-2", "simulator", "workers"}
    for name in ("simulator", "workers"):
        record = records[name]
        assert 48 < record["evaluations"] <= 60  # one an episode, and those that are to choose by
        updates, means = zip(*record["episodes"], strict=True)
        assert updates == tuple(range(1, len(updates) + 1))
        assert len(updates) * 4 <= record["evaluations"]
        assert 0 < record["runtime"] <= min(means)  # the best of all of them
        assert record["measured"] > 0
    assert "| Placeto on two workers |" in page
    assert "rewards are terminal." in page
    check_picture(folder / "nmt-2.png", 900)
    refused = fail("experiment", "measured-curves", "nmt-3", SMOKE, "-o", tmp_path / "other")
    assert "nmt-3: expected one of nmt-2" in refused


def test_no_test_graph_is_one_of_training(family: Path) -> None:
    placed = graphs_of(family)
    every = {path.name.removesuffix(".json.gz") for path in (family / "problems").iterdir()}
    to_choose_by = {name for name in every if name.endswith("-to-choose-by")}
    training = every - placed - to_choose_by
    assert len(to_choose_by) == 2
    assert len({name.partition("-grouping-")[0] for name in training}) == 2
    graphs = {
        name: load_problem(family / "problems" / f"{name}.json.gz").graph for name in sorted(every)
    }
    for some, others in ((placed, training | to_choose_by), (to_choose_by, training)):
        assert all(graphs[name] != graphs[other] for name in some for other in others)


def test_the_policy_learns_from_each_graph_in_several_groupings(family: Path) -> None:
    others = sorted((family / "problems").glob("*-grouping-1.json.gz"))
    assert len(others) == 2
    groups = []
    for path in others:
        other = load_problem(path)
        usual = load_problem(path.with_name(path.name.replace("-grouping-1", "")))
        assert other.graph == usual.graph
        groups += [usual.num_groups, other.num_groups]
    trained = trials_of(family)["training/placeto-0"]
    # Each update of four workers has an episode of each problem; two graphs are to choose by.
    assert trained["evaluations"] <= 5 * sum(1 + 2 * count for count in groups) + 2 * (1 + 12)
    assert groups == [12, 8, 12, 8]


def test_the_paper_trains_on_one_grouping_of_each_graph() -> None:
    several, one = (
        generalise("nmt", chosen_plan("generalise", "smoke", preset_name=name)).problems
        for name in (None, "paper")
    )
    assert any("-grouping-" in name for name in several)
    assert not any("-grouping-" in name for name in one)


def test_searches_have_as_many_evaluations_as_placeto_may_have(family: Path) -> None:
    evaluations: dict[str, set[int]] = {}
    for name, record in trials_of(family).items():
        if name.startswith("seed"):
            evaluations.setdefault(name.rpartition("/")[2], set()).add(record["evaluations"])
    assert evaluations["local-search"] == evaluations["random-search"] == {200}
    assert evaluations["placeto-zero-shot"] == {1 + 12}
    assert all(3 * 4 < count <= 200 + 1 + 12 for count in evaluations["placeto-optimized"])
    swept = evaluations["placeto-zero-shot-swept"]
    assert all(1 + 2 * 12 <= count <= 1 + 3 * 12 for count in swept)
    assert max(evaluations["hill-climbing"]) <= 200


def test_architectures_are_told_beside_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "architectures", "cifar10", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1)
    for embedding, title, paper in (
        ("message-passing", "Full embedding", "+0.0 %"),
        ("simple-partitioner", "Simple partitioner", "+13.0 %"),
        ("simple-aggregator", "Simple aggregator", "+20.0 %"),
    ):
        policy = policy_of(folder, f"{embedding}-0")
        assert policy.settings.embedding == embedding
        assert policy.settings.device_features == "loads"
        assert policy.settings.node_features == "costs-and-times"
        published = policy_of(folder, f"published-{embedding}-0")
        usual = preset("paper")
        assert published.settings.embedding == embedding
        assert published.settings.node_features == usual.node_features
        assert published.settings.reward == usual.reward
        assert published.settings.updates == 3 * policy.settings.updates
        assert cell(page, f"{title} | as published", 4) == paper


def test_rewards_are_learned_from_and_their_last_episode_is_told(everything: Path) -> None:
    folder = everything / "rewards"
    page = check_complete(folder, pictures=2)
    trials = trials_of(folder)
    for reward, per_episode, discount in (
        ("intermediate", 12, 0.9),
        ("intermediate-undiscounted", 12, 1.0),
        ("terminal", 1, 1.0),
        ("published-intermediate", 12, 1.0),
        ("published-terminal", 1, 1.0),
    ):
        updates = 3 * UPDATES if reward.startswith("published") else UPDATES
        validations = 0 if reward.startswith("published") else 1
        assert policy_of(folder, f"{reward}-0").settings.return_discount == discount
        learned = trials[f"training/{reward}-0"]
        assert [row[0] for row in learned["updates"]] == list(range(1, updates + 1))
        sampled = updates * 4 * per_episode + validations
        assert learned["evaluations"] == sampled
        assert len(trials[f"seed0/nmt-0/{reward}-final-episode"]["steps"]) == 12 + 1
        assert cell(page, reward, 5) == f"{sampled:,}"


def test_orders_of_traversal(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path, num_layers=12), tmp_path / "results"
    succeed("experiment", "traversal", path.parent / "graph.txt", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1)
    orders = {name.rpartition("-order-")[2] for name in graphs_of(folder) if "-order-" in name}
    assert orders == {"4", "5", "6", "7"}
    assert cell(page, "RNN zero-shot", 6) == "about +30 %"


@pytest.mark.slow
def test_table1_has_the_papers_rows_beside_ours(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "table1", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=6)
    ours = [line.split(" | ") for line in page.splitlines() if line.startswith("| ours |")]
    papers = [line.split(" | ") for line in page.splitlines() if line.startswith("| paper |")]
    assert [row[4] for row in ours] == [row[4] for row in papers] == ["2", "4"] * 3
    assert [row[7] for row in papers] == ["1.18", "1.13", "2.32", "2.63", "0.86", "0.74"]
    trials = trials_of(folder)
    names = ["inception-v3", "inception-v3", "nmt-2", "nmt-4", "nasnet", "nasnet"]
    published = [line.split(" | ") for line in page.splitlines() if "| as published |" in line]
    boxed = [line.split(" | ") for line in page.splitlines() if "| in the box |" in line]
    for rows, scheme in ((ours, "placeto"), (published, "paper"), (boxed, "pretrained")):
        for row, name in zip(rows, names, strict=True):
            runtime = trials[f"seed0/{name}-{row[4]}xk80/{scheme}"]["runtime"]
            assert float(row[7]) == pytest.approx(runtime, rel=1e-3)
    for name in PLACER_NAMES:
        count = 6 + (name in SEARCHES)
        assert page.count(f"\n| {PLACERS[name].title} |") == count
    assert cell(page, "Local search", 5).startswith("100.0 %: ")  # as fast as itself
    until = [
        trials[f"seed0/nasnet-4xk80/{name}"]["evaluations_to_best"] for name in ("paper", "rnn")
    ]
    episodes, rnn = until[0] / 12, until[1]
    assert cell(page, "nasnet-4xk80", 4) == f"{episodes:,.0f}"
    assert cell(page, "nasnet-4xk80", 6) == f"{rnn / episodes:.2f}"
    page = page.partition("## What the number of groups is worth")[2]
    finer = trials["seed0/nasnet-4xk80/multilevel-finer"]
    assert len(finer["placement"]) > 12
    assert cell(page, "nasnet-4xk80", 6) == f"{len(finer['placement']):,}"
    gain = 1 - finer["cost"] / trials["seed0/nasnet-4xk80/multilevel"]["cost"]
    assert cell(page, "nasnet-4xk80", 8) == f"{100 * gain:.1f} %"
    check_a_failure_in_finer_groups_is_told(folder)


def check_a_failure_in_finer_groups_is_told(folder: Path) -> None:
    store = TrialStore(folder / TRIALS)
    records = {store.origins[key].name: record for key, record in store.records.items()}
    records[f"seed0/nasnet-2xk80/{FINER}"] = Failed(error="no luck")
    page = table1(chosen_plan("table1", "smoke")).page(Results(records))
    assert page.failures == ["nasnet on 2xk80, multilevel-finer: no luck"]
    told = "\n".join(page.parts).partition("## What the number of groups is worth")[2]
    assert "| nasnet-4xk80 |" in told
    assert "| nasnet-2xk80 |" not in told


@pytest.mark.parametrize("checkpoint", [10, 11])
def test_a_training_goes_on_in_its_middle(checkpoint: int, tmp_path: Path) -> None:
    """It is stopped after an update, which makes a checkpoint, or killed after the tenth."""

    class KilledError(Exception):
        pass

    def show(_text: str) -> None:
        seen.append(1)
        if checkpoint == 10 and len(seen) == 11:
            raise KilledError

    seen: list[int] = []
    problem = fork_join_problem(1)
    settings = Settings(hidden_units=8, message_rounds=1, workers=2, updates=14)
    task = TrainPlaceto("policy", (Graph("x"),), settings, seed=3)
    records = []
    for name in ("stopped", "whole"):
        workspace = Workspace(tmp_path / name)
        log = workspace.policy_file("policy").with_suffix(".jsonl")
        workspace.problem_file("x").parent.mkdir(parents=True)
        save_problem(problem, workspace.problem_file("x"))
        if name == "stopped":
            with pytest.raises((StoppedError, KilledError)):
                task.run(workspace, Watch(lambda: len(seen) == 10 and checkpoint == 11, show))
            assert len(log.read_text().splitlines()) == 11
        record = task.run(workspace, Watch(lambda: False))
        assert isinstance(record, Trained)
        records.append(msgspec.structs.replace(record, seconds=0.0))
        assert len(log.read_text().splitlines()) == 14
    assert records[0] == records[1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGKILL, 1), (signal.SIGINT, 2)])
def test_a_command_that_was_stopped_goes_on_to_the_same(
    number: signal.Signals, jobs: int, everything: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    command = ["experiment", "rewards", "nmt:0", SMOKE, "-o", folder]
    output, errors = start_paused(tmp_path / "pause", 3, *command, f"--jobs={jobs}").send(number)
    if number == signal.SIGINT:
        assert output == ""
        assert errors.splitlines()[-1].endswith("of 12 trials; the same command goes on")
        assert "Traceback" not in errors
    succeed(*command)
    assert trials_of(folder) == trials_of(everything / "rewards")


COMMANDS = {
    "generalise": ["nmt"],
    "traversal": ["nmt:0"],
    "architectures": ["nmt"],
    "rewards": ["nmt:0"],
    "table1": [],
    "fidelity": ["nmt-2"],
    "measured-curves": ["nmt-2"],
}
MAKING = {"--gpus", "--link", "--groups"}  # decide what problems are


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Return what gives the experiment that a command would run."""
    found: list[Experiment] = []
    monkeypatch.setattr(Run, "__call__", lambda _run, experiment, *_: found.append(experiment))

    def choose(name: str, *options: str) -> Experiment:
        succeed("experiment", name, *COMMANDS[name], SMOKE, *options, "-o", "results")
        return found.pop()

    return choose


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_decides_something(name: str, chosen: Callable[..., Experiment]) -> None:
    def problem(experiment: Experiment) -> str:
        made = [make for name, make in experiment.problems.items() if "nmt" in name]
        return content_digest([make() for make in made[:1]])

    usual = chosen(name)
    values = {"--link": "pcie-shared", "--preset": "paper", "--rnn-set": "hidden_size=8"}
    values["--set"] = "hidden_units=8"
    others = {"--output", "--scale", "--force", "--jobs", "--debug"}
    params = experiment_group.commands[name].params
    options = {param.opts[-1] for param in params if isinstance(param, click.Option)} - others
    for option in options:
        told = chosen(name, f"{option}={values.get(option, '9')}")
        is_other = told.trials != usual.trials
        assert is_other or (option in MAKING and problem(told) != problem(usual)), option


@pytest.mark.parametrize("name", ["traversal", "rewards", "table1", "measured-curves"])
def test_each_hyperparameter_decides_something(
    name: str, chosen: Callable[..., Experiment]
) -> None:
    plan, usual = chosen_plan(name, "smoke"), chosen(name)
    for option, settings in (("--set", plan.settings), ("--rnn-set", plan.rnn_settings)):
        if option == "--rnn-set" and name in {"rewards", "measured-curves"}:
            continue
        kinds = get_type_hints(type(settings))
        for field in fields(settings):
            value = getattr(settings, field.name)
            names = [other for other in get_args(kinds[field.name]) if other != value]
            other = names[0] if names else 2 * value if isinstance(value, int) else value / 2 or 0.5
            if field.name not in {"updates", "evaluations"} and (name, field.name) != REFUSED:
                told = chosen(name, f"{option}={field.name}={other}")
                assert told.trials != usual.trials, field.name


REFUSED = ("rewards", "reward")


def test_what_cannot_be_begun_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    rewards = ["experiment", "rewards", "nmt:1", SMOKE, "-o", folder]
    assert succeed("experiment") == succeed("experiment", "--help")
    assert "Missing argument" in fail("experiment", "generalise", "-o", folder)
    assert "got 'no'" in fail("experiment", "generalise", "no", "-o", folder)
    assert "Missing option '-o'" in fail("experiment", "rewards")
    assert "No such option '--graphs'" in fail(*rewards, "--graphs=3")
    assert "No such option '--gpus'" in fail("experiment", "table1", "--gpus=3", "-o", folder)
    assert "No such option '--jobs'" in fail("experiment", "fidelity", "--jobs=2", "-o", folder)
    assert "--set x: expected one of embedding" in fail(*rewards, "--set=x=1")
    twice = fail(*rewards, "--set=hidden_units=4", "--set=hidden_units=8")
    assert "--set hidden_units: expected it once, got it again" in twice
    assert "--set hidden_units: expected a number" in fail(*rewards, "--set=hidden_units=many")
    assert "workers: expected an integer >= 1" in fail(*rewards, "--set=workers=0")
    curves = ["experiment", "traversal", SMOKE, "-o", folder]
    assert "hidden_size: expected an even number" in fail(*curves, "--rnn-set=hidden_size=3")
    assert "--rnn-set x: expected one of hidden_size" in fail(*curves, "--rnn-set=x=3")
    assert "--set reward: the experiment tries all" in fail(*rewards, "--set=reward=terminal")
    architectures = ["experiment", "architectures", "nmt", SMOKE, "-o", folder]
    assert "--set embedding: the" in fail(*architectures, "--set=embedding=message-passing")
    assert "--set updates: expected --updates in its place" in fail(*rewards, "--set=updates=3")
    assert "--set updates: expected --evaluations in its place" in fail(
        "experiment", "table1", SMOKE, "-o", folder, "--set=updates=3"
    )
    assert "--rnn-set evaluations: expected --rnn-evaluations" in fail(
        *curves, "--rnn-set=evaluations=3"
    )
    assert "expected one of default, general, fine-tuning, paper" in fail(*rewards, "--preset=best")
    assert not folder.exists()
    path = build_profile(tmp_path)
    assert "expected a folder, got a file" in fail("experiment", "rewards", SMOKE, "-o", path)
    assert "is there already, and not empty" in fail("experiment", "rewards", SMOKE, "-o", tmp_path)
    (tmp_path / "experiment.json").write_text("{}")
    assert "expected what `placeto experiment` or" in fail(
        "experiment", "rewards", SMOKE, "-o", tmp_path
    )


def test_what_is_no_source_is_found_out_before_anything_is_trained(tmp_path: Path) -> None:
    text = fail("experiment", "rewards", "no-such-model", SMOKE, "-o", tmp_path / "results")
    assert "expected a model" in text


def test_the_preset_of_the_paper() -> None:
    plan = chosen_plan("rewards", "smoke", {}, "paper", (("baseline_window", "7"),))
    assert plan.settings.discount == 1.0
    assert plan.settings.baseline_window == 7
    assert plan.settings.hidden_units == 16  # of the scale
    trained = [
        trial.task.policy
        for trial in rewards("nmt:1", plan).trials
        if isinstance(trial.task, TrainPlaceto)
    ]
    assert trained == [
        "intermediate-0",
        "terminal-0",
        "counterfactual-0",
        "published-intermediate-0",
        "published-terminal-0",
    ]  # its returns are never discounted


def test_all_experiments_are_one_command_that_goes_on(everything: Path) -> None:
    names = ("rewards", "measured-curves")
    pages = {name: (everything / name / "results.md").read_text() for name in names}
    first = {name: page.splitlines()[2] for name, page in pages.items()}
    assert first["rewards"].startswith("`placeto experiment rewards nmt:0 --scale smoke`, ")
    told = first["measured-curves"]
    assert told.startswith("`placeto experiment measured-curves nmt-2 --scale smoke`, ")
    assert "seeds 0, " in told
    lines = trials_of(everything / "measured-curves", clocks=True).values()
    assert f"{clock(sum(line['took'] for line in lines))} in all." in told
    command = ["experiment", "all", *names, SMOKE, "-o", everything]
    succeed(*command, "--jobs=2")  # is there already, and stays as it is
    assert pages == {name: (everything / name / "results.md").read_text() for name in pages}
    assert "expected rewards, or another of" in fail(
        "experiment", "all", "reward", "-o", everything
    )
