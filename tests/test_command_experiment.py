"""``placeto experiment``: every experiment at its smallest, interrupted, resumed, refused."""

import signal
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from command_runs import fail, start_paused, succeed
from experiment_folders import SMOKE, cell, check_complete, policy_of, trials_of
from placeto.progress import clock
from placeto.trials.keys import content_digest
from placeto.trials.trials import (
    Experiment,
)
from placeto_experiments import command
from placeto_experiments.command import experiment as experiment_group
from placeto_experiments.paper.plan import chosen_plan
from placeto_experiments.paper.rewards import TITLES, rewards
from placeto_experiments.paper.tasks import TrainPlaceto

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


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generalise no", "got 'no'"),
        ("rewards nmt:1 --graphs=3", "No such option '--graphs'"),
        ("rewards nmt:1 --hparam=workers=4 --hparam=workers=8", "workers: expected it once, got"),
        ("traversal --rnn-hparam=hidden_size=3", "hidden_size: expected an even number"),
        ("rewards nmt:1 --hparam=reward=terminal", "--hparam reward: the experiment tries all"),
        ("architectures nmt --hparam=embedding=pairs", "--hparam embedding: the"),
        ("rewards nmt:1 --hparam=updates=3", "--hparam updates: expected --updates instead"),
        ("table1 --hparam=updates=3", "--hparam updates: expected --evaluations instead"),
        ("traversal --rnn-hparam=evaluations=3", "evaluations: expected --rnn-evaluations"),
        ("rewards no-such-model", "no such model: expected one of inception-v3, "),
        ("all reward", "expected rewards, or another of"),
    ],
)
def test_what_cannot_be_begun_is_said_in_one_line(
    command: str, message: str, tmp_path: Path
) -> None:
    assert message in fail("experiment", *command.split(), SMOKE, "-o", tmp_path / "results")
    assert not (tmp_path / "results" / "results.md").exists()


def test_the_preset_of_the_paper() -> None:
    plan = chosen_plan("rewards", "smoke", preset_name="paper", settings=(("workers", "7"),))
    assert (plan.settings.discount, plan.settings.workers) == (1.0, 7)
    assert plan.settings.hidden_units == 16  # of the scale
    tasks = [trial.task for trial in rewards("nmt:1", plan).trials]
    trained = [task.policy for task in tasks if isinstance(task, TrainPlaceto)]
    # Its returns are never discounted.
    usual = ["intermediate-0", "terminal-0", "counterfactual-0"]
    assert trained == [*usual, "paper-intermediate-0", "paper-terminal-0"]


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
