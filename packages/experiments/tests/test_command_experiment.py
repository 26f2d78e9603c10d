"""``placeto experiment``: each at its smallest, interrupted, resumed, refused; its tables."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import numpy as np
import pytest

import experiment_plugin  # noqa: F401
from command_runs import build_profile, check_picture, fail, start_paused, succeed
from experiment_folders import SMOKE, cell, check_complete, policy_of, trials_of
from experiment_tasks import placed
from placeto.placing.placers import PLACER_NAMES, PLACERS
from placeto.problems.options import group_counts
from placeto.progress import clock
from placeto.trials.comparison import Describe
from placeto.trials.folder import content_digest
from placeto.trials.records import TrialRecord
from placeto.trials.trials import Experiment, Results
from placeto_experiments import command
from placeto_experiments.command import experiment as experiment_group
from placeto_experiments.paper import table1 as table1_module
from placeto_experiments.paper.generalise import TABLE_LABELS
from placeto_experiments.paper.plan import chosen_plan, folder_problems
from placeto_experiments.paper.rewards import TITLES, rewards
from placeto_experiments.paper.table1 import SEARCHES, seconds_of_trainings, table1
from placeto_experiments.paper.tasks import TrainPlaceto
from placeto_graphs import load_problem
from placeto_policy import preset

UPDATES = 5  # of the scale


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an experiment that one command ran."""
    folder = tmp_path_factory.mktemp("all") / "results"
    succeed("experiment", "all", "rewards", SMOKE, "-o", folder)
    return folder


def test_rewards_are_learned_from_and_their_last_episode_is_told(everything: Path) -> None:
    folder = everything / "rewards"
    page = check_complete(folder, pictures=3)
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
        assert len(learned["runtimes"]) == len(learned["entropies"]) == updates
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
    assert errors.splitlines()[-1].endswith("of 12 trials; run the same command again to resume")
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
    experiments: list[Experiment] = []
    monkeypatch.setattr(
        command, "run_experiment", lambda experiment, *_, **_named: experiments.append(experiment)
    )

    def choose(name: str, *options: str) -> Experiment:
        succeed("experiment", name, *COMMANDS[name], SMOKE, *options, "-o", "results")
        return experiments.pop()

    return choose


@pytest.mark.parametrize(
    "name", [*list(COMMANDS)[:-1], pytest.param("table1", marks=pytest.mark.slow)]
)
def test_each_option_decides_something(name: str, chosen: Callable[..., Experiment]) -> None:
    def problem(experiment: Experiment) -> str:
        makers = [make for name, make in experiment.problems.items() if "nmt" in name]
        return content_digest([make() for make in makers[:1]])

    usual = chosen(name)
    values = {"--link": "pcie-shared", "--preset": "paper", "--rnn-hparam": "hidden_size=8"}
    values |= {"--paper-hparam": "entropy_control=target"}
    values |= {"--hparam": "hidden_units=8", "--own-placer": "placeto_baselines:Heft"}
    ignored_options = {"--output", "--scale", "--force", "--jobs", "--debug", "--graphs"}
    params = experiment_group.commands[name].params
    options = {
        param.opts[-1] for param in params if isinstance(param, click.Option)
    } - ignored_options
    assert "--seeds" in options
    for option in options:
        changed = chosen(name, f"{option}={values.get(option, '9')}")
        is_other = changed.trials != usual.trials
        assert is_other or (option in MAKING and problem(changed) != problem(usual)), option


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generalise no", "got 'no'"),
        ("generalise", "expected FAMILY, or --graphs FOLDER"),
        ("generalise nmt --graphs .", "expected FAMILY, or --graphs FOLDER"),
        ("rewards nmt:1 --training-graphs=3", "No such option '--training-graphs'"),
        ("rewards nmt:1 --hparam=workers=4 --hparam=workers=8", "workers: expected it once, got"),
        ("traversal --rnn-hparam=hidden_size=3", "hidden_size: expected an even number"),
        ("rewards nmt:1 --hparam=reward=terminal", "--hparam reward: the experiment tries all"),
        ("architectures nmt --hparam=embedding=pairs", "--hparam embedding: the"),
        ("rewards nmt:1 --hparam=updates=3", "--hparam updates: expected --updates instead"),
        ("architectures --paper-hparam=embedding=pairs", "--paper-hparam embedding: the"),
        ("generalise nmt --paper-hparam=updates=3", "--paper-hparam updates: expected --updates"),
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
    summary = page.splitlines()[2]
    assert summary.startswith("`placeto experiment rewards nmt:0 --scale smoke`, ")
    assert "seeds 0, " in summary
    assert re.search(r", (commit [0-9a-f]{7,}\+?|placeto \d+\.\d+\.\d+), seeds", summary)
    lines = trials_of(everything / "rewards", clocks=True).values()
    assert f"{clock(sum(line['took'] for line in lines))} in all." in summary
    command = ["experiment", "all", "rewards", SMOKE, "-o", everything]
    succeed(*command, "--jobs=2")  # is there already, and stays as it is
    assert page == (everything / "rewards" / "results.md").read_text()


def graphs_of(folder: Path, placer: str = "") -> set[str]:
    """Return the graphs that were placed, by a placer or by any."""
    names = [name.split("/") for name in trials_of(folder) if name.count("/") == 2]
    return {graph for _, graph, label in names if placer in {"", label}}


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    lines = page.partition(f"\n{heading}\n\n")[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def check_tables(page: str) -> None:
    """Check that tables have at most eight columns and twenty rows."""
    tables = re.findall(r"(?:^\|.*\n)+", page + "\n", flags=re.MULTILINE)
    assert tables
    for table in tables:
        rows = table.splitlines()
        assert len(rows) <= 2 + 20
        assert max(row.count(" | ") for row in rows) < 8


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of generalisation over small members of a family."""
    folder = tmp_path_factory.mktemp("generalise") / "results"
    succeed("experiment", "generalise", "cifar10", SMOKE, "--training-graphs=1", "-o", folder)
    return folder


@pytest.mark.slow
def test_generalisation_is_told_of_unseen_graphs(family: Path) -> None:
    page = check_complete(family, pictures=2, wide="distributions.png")
    graphs, trials = sorted(graphs_of(family, "random")), trials_of(family)
    costs = {
        name: np.array([trials[f"seed0/{graph}/{name}"]["cost"] for graph in graphs])
        for name in set(TABLE_LABELS) - {"single", "lower-bound"}
    }
    bounds = [trials[f"every-seed/{graph}/lower-bound"]["cost"] for graph in graphs]
    assert len(graphs) == 2
    assert all((of_placer >= bounds).all() for of_placer in costs.values())
    zero_shot = costs["placeto-zero-shot"]
    assert (costs["placeto-zero-shot-sampled"] <= zero_shot).all()
    shown_ratio = cell(
        page.partition("## Runtimes")[2], "Placeto (default configuration), zero-shot", 2
    )
    assert shown_ratio.split()[0] == f"{np.mean(zero_shot / costs['placeto-trained']):.3f}"
    check_tables(page)
    on_training = [
        trials[f"seed0/cifar10-00/{name}"]["cost"] for name in ("paper-zero-shot", "local-search")
    ]
    carried = [
        np.mean(costs["paper-zero-shot"] / costs["paper-trained"]),
        on_training[0] / on_training[1],
        np.mean(costs["paper-zero-shot"] / costs["local-search"]),
        np.mean(costs["paper-trained"] / costs["local-search"]),
    ]
    cells = [
        cell(page, "Placeto (paper configuration), zero-shot", column) for column in (1, 2, 3, 4)
    ]
    assert cells[0].removesuffix(" %") == f"{100 * carried[0] - 100:+.1f}"
    assert cells[1:] == [f"{ratio:.3f}" for ratio in carried[1:]]
    assert "| Random placement |" in page
    assert "Addanki et al. (2019)" in page


@pytest.mark.slow
def test_no_test_graph_is_one_of_training(family: Path) -> None:
    placed = graphs_of(family, "random")
    problems = {
        path.name.removesuffix(".json.gz"): path for path in (family / "problems").iterdir()
    }
    graphs = {name: load_problem(path).graph for name, path in sorted(problems.items())}
    to_choose_by = {name for name in graphs if name.endswith("-to-choose-by")}
    training = graphs.keys() - placed - to_choose_by
    assert (len(to_choose_by), len(training)) == (1, 2)
    assert len({name.partition("-granularity-")[0] for name in training}) == 1
    for names, unseen_in in ((placed, training | to_choose_by), (to_choose_by, training)):
        assert all(graphs[name] != graphs[other_name] for name in names for other_name in unseen_in)


@pytest.fixture(scope="module")
def own_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of ten problems of one family of a user's own."""
    folder = tmp_path_factory.mktemp("graphs")
    for index in range(10):
        build_profile(folder, num_layers=8 + index).rename(folder / f"g{index}.json")
        (folder / "graph.txt").unlink()
    return folder


def test_own_graphs_are_learned_chosen_by_or_placed(own_graphs: Path) -> None:
    plan = chosen_plan("generalise", "small")
    problems = folder_problems(own_graphs, plan)
    assert [graph.name for graph in problems.whole] == ["g0", "g1", "g3", "g6", "g7", "g9"]
    assert [graph.name for graph in problems.validation] == ["g4"]
    assert [graph.name for graph in problems.test] == ["g2", "g5", "g8"]
    assert len(problems.training) == plan.granularities * 6
    for name in ("g2", "g4", "g9"):
        assert problems.makers[name]() == load_problem(own_graphs / f"{name}.json")
    coarser = problems.makers["g9-granularity-1"]()
    assert coarser.graph == load_problem(own_graphs / "g9.json").graph
    usual, count, *_ = group_counts(17, plan.granularities)
    assert coarser.num_groups == count < usual


@pytest.mark.slow
def test_a_policy_generalises_over_own_graphs(own_graphs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "generalise", "--graphs", own_graphs, SMOKE, "-o", folder)
    page = check_complete(folder, pictures=2, wide="distributions.png")
    figure = check_picture(folder / "distributions.png", 1300)
    assert figure.get_suptitle() == "2 unseen graphs"  # on the devices of their files
    assert graphs_of(folder, "random") == {"g2", "g5"}  # as many as the scale has
    assert page.startswith(f"# Generalisation over {own_graphs}")


@pytest.mark.parametrize("option", ["--gpus=3", "--link=pcie-shared"])
def test_own_problems_keep_their_devices(option: str, own_graphs: Path, tmp_path: Path) -> None:
    generalise = ["experiment", "generalise", "--graphs", own_graphs, SMOKE]
    line = fail(*generalise, option, "-o", tmp_path / "new")
    name = option.partition("=")[0]
    assert f"{name}: expected a source without devices of its own, got {own_graphs}" in line


def test_few_own_graphs_are_refused(tmp_path: Path) -> None:
    build_profile(tmp_path)
    line = fail("experiment", "generalise", "--graphs", tmp_path, "-o", tmp_path / "results")
    assert "expected at least 3 graph files, got 2" in line


def test_architectures_are_told_beside_the_paper(tmp_path: Path) -> None:
    folder, usual = tmp_path / "results", preset("paper")
    succeed("experiment", "architectures", "cifar10", SMOKE, "--training-graphs=1", "-o", folder)
    page = check_complete(folder, pictures=1)
    for embedding, title, paper in (
        ("message-passing", "Full embedding", "+0.0 %"),
        ("simple-partitioner", "Simple partitioner", "+13.0 %"),
        ("simple-aggregator", "Simple aggregator", "+20.0 %"),
    ):
        trained = policy_of(folder, f"{embedding}-0").settings
        published = policy_of(folder, f"paper-{embedding}-0").settings
        assert trained.embedding == published.embedding == embedding
        assert (trained.device_features, trained.node_features) == ("loads", "costs-and-times")
        assert (published.node_features, published.reward) == (usual.node_features, usual.reward)
        assert published.updates == 3 * trained.updates
        assert cell(page, f"{title} | paper", 4) == paper


def test_orders_of_traversal(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path, num_layers=12), tmp_path / "results"
    succeed("experiment", "traversal", path.parent / "graph.txt", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1)
    orders = {name.rpartition("-order-")[2] for name in graphs_of(folder) if "-order-" in name}
    assert orders == {"4", "5", "6", "7"}
    assert cell(page, "RNN, zero-shot", 6) == "about +30 %"


@pytest.mark.slow
def test_table1_has_the_papers_rows_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its two smallest models; the cells of all are in the next test."""
    for name in ("ROWS", "PAPER_TABLE_1"):
        monkeypatch.setattr(table1_module, name, getattr(table1_module, name)[2:4])
    folder = tmp_path / "results"
    succeed("experiment", "table1", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=2)
    rows = rows_of(page, "## Runtimes")
    assert rows[0][:6] == ["*paper*: NMT, 2 K80s", "33.5", "OOM", "OOM", "OOM", "2.35"]
    trials = trials_of(folder)
    for index, (name, gpus) in enumerate((("nmt-2", 2), ("nmt-4", 4))):
        row = rows[2 * index + 1]
        assert row[0] == f"{name} on {gpus}xk80"
        for column, placer in ((5, "rnn"), (6, "placeto"), (7, "paper")):
            runtime = trials[f"seed0/{name}-{gpus}xk80/{placer}"]["runtime"]
            assert float(row[column]) == pytest.approx(runtime, rel=1e-3)
    for name in PLACER_NAMES:
        assert page.count(f"\n| {PLACERS[name].title} |") == 2 + 3 * (name in SEARCHES)
    assert "*f* |" not in page  # smaller models are not fitted
    assert cell(page, "Local search", 5) == ""  # it is not compared with itself
    check_tables(page)
    steps = {
        name: trials[f"seed0/nmt-4-4xk80/{name}"]["evaluations_to_best"]
        for name in ("paper", "rnn")
    }
    assert cell(page, "nmt-4-4xk80", 4) == f"{steps['paper'] / 12:,.0f}"  # episodes
    assert cell(page, "nmt-4-4xk80", 6) == f"{12 * steps['rnn'] / steps['paper']:.2f}"


def finished(experiment: Experiment) -> dict[str, TrialRecord]:
    """Return a record of each trial of a comparison."""
    device_counts = {"devices": ["k80:0"], "gpus": 1, "ops": 1, "groups": 1}
    return {
        trial.name: msgspec.structs.replace(trial.task.problem, **device_counts)
        if isinstance(trial.task, Describe)
        else placed()
        for trial in experiment.trials
    }


def test_cells_that_are_fitted_to_the_papers_times_are_marked() -> None:
    plan = chosen_plan("table1", "small", seeds=1, evaluations=50_000)
    user_placer = "placeto_baselines:Heft"
    assert seconds_of_trainings(plan) == pytest.approx(6 * (107.5 + 36 + 170))
    experiment = table1(plan, [user_placer])
    records = finished(experiment)
    page = "\n\n".join(experiment.page(Results(records)).sections)
    check_tables(page)
    assert page.count(f"\n| {user_placer} |") == 6
    assert page.count("- RNN: fewer evaluations than in the paper: 20,000.") == 6
    assert page.count("fewer evaluations than in the paper: 250,000.") == 6
    rows = rows_of("\n\n".join(experiment.page(Results(records)).sections), "## Runtimes")
    marks_of_rows = [(row[0], [cell.endswith(" *f*") for cell in row[1:]]) for row in rows]
    both, cpu, none = ([cell in cells for cell in range(7)] for cells in ({0, 1}, {0}, set[int]()))
    fitted = {"inception-v3": both, "nmt-4": cpu, "nasnet": both}
    assert [name for name, _ in marks_of_rows[::2]] == [
        f"*paper*: {model}, {gpus} K80s"
        for model in ("Inception-V3", "NMT", "NASNet")
        for gpus in (2, 4)
    ]
    assert [row[7] for row in rows[::2]] == ["1.18", "1.13", "2.32", "2.63", "0.86", "0.74"]
    assert all(
        marks == fitted.get(name.partition(" on ")[0], none) for name, marks in marks_of_rows
    )
    some_records = {name: record for name, record in records.items() if "inception" not in name}
    page = "\n\n".join(experiment.page(Results(some_records)).sections)
    first, second, *_ = rows_of(page, "## Runtimes")
    assert (first[0], second[0]) == ("*paper*: NMT, 2 K80s", "nmt-2 on 2xk80")
