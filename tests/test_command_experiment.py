"""``placeto experiment``: every experiment at its smallest, interrupted, resumed, refused."""

import signal
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest

from command_runs import build_profile, fail, start_paused, succeed
from experiment_folders import SMOKE, cell, check_complete, policy_of, trials_of
from placeto.progress import clock
from placeto.trials.keys import content_digest
from placeto.trials.records import Trained
from placeto.trials.trials import (
    Experiment,
    Graph,
    StoppedError,
    Watch,
    Workspace,
)
from placeto_experiments import command
from placeto_experiments.command import experiment as experiment_group
from placeto_experiments.paper.plan import chosen_plan
from placeto_experiments.paper.rewards import TITLES, rewards
from placeto_experiments.paper.tasks import TrainPlaceto
from placeto_graphs import save_problem
from placeto_graphs.testing import example_problem
from placeto_policy import Settings

UPDATES = 5  # of the scale


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an experiment that one command ran."""
    folder = tmp_path_factory.mktemp("all") / "results"
    succeed("experiment", "all", "rewards", SMOKE, "-o", folder)
    return folder


def test_rewards_are_learned_from_and_their_last_episode_is_told(everything: Path) -> None:
    folder = everything / "rewards"
    page = check_complete(folder, pictures=2)
    trials = trials_of(folder)
    for reward, per_episode, discount in (
        ("intermediate", 12, 0.9),
        ("intermediate-undiscounted", 12, 1.0),
        ("terminal", 1, 1.0),
        ("paper-intermediate", 12, 1.0),
        ("paper-terminal", 1, 1.0),
    ):
        updates = 3 * UPDATES if reward.startswith("paper") else UPDATES
        validations = 0 if reward.startswith("paper") else 1
        assert policy_of(folder, f"{reward}-0").settings.return_discount == discount
        learned = trials[f"training/{reward}-0"]
        assert len(learned["runtimes"]) == updates
        sampled = updates * 4 * per_episode + validations
        assert learned["evaluations"] == sampled
        assert len(trials[f"seed0/nmt-0/{reward}-final-episode"]["steps"]) == 12 + 1
        assert cell(page, TITLES[reward], 5) == f"{sampled:,}"


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
    problem = example_problem(kinds=("k80", "k80"))
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
def test_a_command_that_was_stopped_goes_on_to_the_same(everything: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    command = ["experiment", "rewards", "nmt:0", SMOKE, "-o", folder]
    paused = start_paused(tmp_path / "pause", 3, *command, "--jobs=2")
    output, errors = paused.send(signal.SIGINT)
    assert output == ""
    assert errors.splitlines()[-1].endswith("of 12 trials; the same command resumes")
    assert "Traceback" not in errors
    succeed(*command)
    assert trials_of(folder) == trials_of(everything / "rewards")


COMMANDS = {
    "generalise": ["nmt"],
    "traversal": ["nmt:0"],
    "architectures": ["nmt"],
    "rewards": ["nmt:0"],
    "table1": [],
}
MAKING = {"--gpus", "--link", "--groups"}  # decide what problems are


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Return what gives the experiment that a command would run."""
    found: list[Experiment] = []
    monkeypatch.setattr(command, "run_experiment", lambda one, *_, **_named: found.append(one))

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
    values = {"--link": "pcie-shared", "--preset": "paper", "--rnn-hparam": "hidden_size=8"}
    values["--hparam"] = "hidden_units=8"
    others = {"--output", "--scale", "--force", "--jobs", "--debug"}
    params = experiment_group.commands[name].params
    options = {param.opts[-1] for param in params if isinstance(param, click.Option)} - others
    for option in options:
        told = chosen(name, f"{option}={values.get(option, '9')}")
        is_other = told.trials != usual.trials
        assert is_other or (option in MAKING and problem(told) != problem(usual)), option


REWARDS = ["rewards", "nmt:1"]
TRAVERSAL, ARCHITECTURES = ["traversal"], ["architectures", "nmt"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["generalise", "no"], "got 'no'"),
        ([*REWARDS, "--graphs=3"], "No such option '--graphs'"),
        (
            [*REWARDS, "--hparam=hidden_units=4", "--hparam=hidden_units=8"],
            "--hparam hidden_units: expected it once, got it again",
        ),
        ([*TRAVERSAL, "--rnn-hparam=hidden_size=3"], "hidden_size: expected an even number"),
        ([*REWARDS, "--hparam=reward=terminal"], "--hparam reward: the experiment tries all"),
        ([*ARCHITECTURES, "--hparam=embedding=pairs"], "--hparam embedding: the"),
        ([*REWARDS, "--hparam=updates=3"], "--hparam updates: expected --updates instead"),
        (["table1", "--hparam=updates=3"], "--hparam updates: expected --evaluations instead"),
        ([*TRAVERSAL, "--rnn-hparam=evaluations=3"], "evaluations: expected --rnn-evaluations"),
        (["rewards", "no-such-model"], "no such model: expected one of inception-v3, "),
    ],
)
def test_what_cannot_be_begun_is_said_in_one_line(
    command: list[str], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    assert message in fail("experiment", *command, SMOKE, "-o", folder)
    assert not (folder / "results.md").exists()


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    assert succeed("experiment") == succeed("experiment", "--help")
    path = build_profile(tmp_path)
    assert "expected a folder, got a file" in fail("experiment", "rewards", SMOKE, "-o", path)


def test_the_preset_of_the_paper() -> None:
    plan = chosen_plan(
        "rewards", "smoke", preset_name="paper", settings=(("baseline_window", "7"),)
    )
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
        "paper-intermediate-0",
        "paper-terminal-0",
    ]  # its returns are never discounted


def test_all_experiments_are_one_command_that_goes_on(everything: Path) -> None:
    page = (everything / "rewards" / "results.md").read_text()
    told = page.splitlines()[2]
    assert told.startswith("`placeto experiment rewards nmt:0 --scale smoke`, ")
    assert "seeds 0, " in told
    lines = trials_of(everything / "rewards", clocks=True).values()
    assert f"{clock(sum(line['took'] for line in lines))} in all." in told
    command = ["experiment", "all", "rewards", SMOKE, "-o", everything]
    succeed(*command, "--jobs=2")  # is there already, and stays as it is
    assert page == (everything / "rewards" / "results.md").read_text()
    assert "expected rewards, or another of" in fail(
        "experiment", "all", "reward", "-o", everything
    )
