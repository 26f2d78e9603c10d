"""``placeto experiment``: every experiment at its smallest, interrupted, resumed, refused."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_runs import build_profile, check_picture, fail, start_paused, succeed
from placeto.placing.placers import PLACER_NAMES, SCHEMES
from placeto.progress import clock
from placeto_experiments.paper.published import TABLE_1
from placeto_experiments.paper.table1 import SEARCHES
from placeto_graphs import load_problem
from placeto_policy import load_policy, preset

SMOKE = "--scale=smoke"
UPDATES = 14
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
    "coarse-to-fine",
]
KINDS_OF_REWARD = ["rewards", "nmt:1", SMOKE, f"--updates={UPDATES}", "--seeds=2"]


def trials_of(folder: Path, *, clocks: bool = False) -> dict[str, dict[str, Any]]:
    """Return the trials by key, without what a clock said."""
    trials = {}
    for line in (folder / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        if not clocks:
            record.pop("seconds", None)
            record.pop("took", None)
        trials[record.pop("key")] = record
    return trials


def check_complete(folder: Path, pictures: int, width: int = 900) -> str:
    """Check that a folder has all that an experiment leaves; return its page."""
    description = json.loads((folder / "experiment.json").read_text())
    trials = trials_of(folder, clocks=True)
    assert len(trials) == description["trials"]
    for record in trials.values():
        assert record["seed"] in {None, *description["options"]["seeds"]}
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
    """Return the folder of generalisation over small members of a family, with two seeds."""
    folder = tmp_path_factory.mktemp("generalise") / "results"
    succeed("experiment", "generalise", "nmt", SMOKE, "--seeds=2", "-o", folder)
    return folder


@pytest.fixture(scope="module")
def kinds_of_reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an experiment on rewards that nothing interrupted."""
    folder = tmp_path_factory.mktemp("rewards") / "results"
    succeed("experiment", *KINDS_OF_REWARD, "-o", folder)
    return folder


def test_generalisation_is_told_of_unseen_graphs(family: Path) -> None:
    page = check_complete(family, pictures=1, width=1300)
    trials = trials_of(family)
    graphs = sorted({record["graph"] for record in trials.values()} - {""})
    assert len(graphs) == 2
    for graph in graphs:
        bound = trials[f"every-seed/{graph}/lower-bound"]["cost"]
        single = trials[f"every-seed/{graph}/single"]["cost"]
        for seed in range(2):
            costs = {name: trials[f"seed{seed}/{graph}/{name}"]["cost"] for name in FAMILY_SCHEMES}
            assert all(bound <= cost for cost in (*costs.values(), single))
            assert costs["placeto-zero-shot-sampled"] <= costs["placeto-zero-shot"]
            assert costs["random-search"] < costs["random"]
    ratios = [
        np.mean(
            [
                trials[f"seed{seed}/{graph}/placeto-zero-shot"]["cost"]
                / trials[f"seed{seed}/{graph}/placeto-optimized"]["cost"]
                for graph in graphs
            ]
        )
        for seed in range(2)
    ]
    told = cell(page, "Placeto zero-shot, greedy", 2)
    assert told.split()[0] == f"{np.mean(ratios):.3f}"
    assert "| Random, one placement |" in page
    assert "Addanki et al. (2019)" in page


@pytest.mark.slow
def test_a_family_of_a_controller_is_generalised_over(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "generalise", "cifar10-enas", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1, width=1300)
    assert "# Generalisation over cifar10-enas" in page
    placed = {record["graph"] for record in trials_of(folder).values()} - {""}
    assert all(name.startswith("cifar10-enas-") for name in placed)


def test_fidelity_is_told_of_placements_that_ran(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "fidelity", SMOKE, "-o", folder)
    page = (folder / "results.md").read_text()
    (record,) = trials_of(folder).values()
    rows = record["rows"]
    assert len(rows) == 25
    assert len({row["placement"] for row in rows}) == 25
    # On one device no order is faster than another, and no op than the problem says.
    (single,) = (row for row in rows if row["placement"] == "single")
    assert single["paced"] >= 0.999 * single["simulated"]
    assert single["slowed"] == single["simulated"]
    assert any(row["slowed"] > row["simulated"] for row in rows)
    paced = [row["simulated"] / row["paced"] - 1 for row in rows]
    assert cell(page, "nmt-2", 4) == f"{np.mean(np.abs(paced)):.2%}"
    refused = fail("experiment", "fidelity", "nmt-3", SMOKE, "-o", tmp_path / "other")
    assert "nmt-3: expected one of nmt-2" in refused


def test_policies_learn_on_workers_that_run(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "measured-curves", SMOKE, "-o", folder)
    page = (folder / "results.md").read_text()
    records = {record["scheme"]: record for record in trials_of(folder).values()}
    assert set(records) == {"simulator", "workers"}
    for record in records.values():
        assert 100 < record["evaluations"] <= 120  # one an episode, and those that are to choose by
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
    placed = {record["graph"] for record in trials_of(family).values()} - {""}
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
    trained = trials_of(family)["seed0/training/placeto-0"]
    # Each update of four workers has an episode of each problem; two graphs are to choose by.
    assert trained["evaluations"] <= 5 * sum(1 + 2 * count for count in groups) + 2 * (1 + 12)
    assert groups == [12, 8, 12, 8]


@pytest.mark.slow
def test_the_paper_trains_on_one_grouping_of_each_graph(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "generalise", "nmt", SMOKE, "--preset=paper", "-o", folder)
    assert not list((folder / "problems").glob("*grouping*"))
    assert "experiment has none to choose" in fail(
        "experiment", "rewards", "nmt:1", SMOKE, "--groupings=2", "-o", tmp_path / "other"
    )


def test_searches_have_as_many_evaluations_as_placeto_may_have(family: Path) -> None:
    for key, record in trials_of(family).items():
        scheme = key.rpartition("/")[2]
        if scheme in {"local-search", "random-search"}:
            assert record["evaluations"] == 200
        if scheme == "placeto-optimized":
            assert 3 * 4 < record["evaluations"] <= 200 + 1 + 12
        if scheme == "placeto-zero-shot":
            assert record["evaluations"] == 1 + 12
        if scheme == "placeto-zero-shot-swept":
            assert 1 + 2 * 12 <= record["evaluations"] <= 1 + 3 * 12
        if scheme == "hill-climbing":
            assert record["evaluations"] <= 200


def test_architectures_are_told_beside_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "architectures", "nmt", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1)
    for embedding, title, paper in (
        ("message-passing", "Full embedding", "+0.0 %"),
        ("simple-partitioner", "Simple partitioner", "+13.0 %"),
        ("simple-aggregator", "Simple aggregator", "+20.0 %"),
    ):
        policy = load_policy(folder / "policies" / f"{embedding}-0.safetensors")
        assert policy.settings.embedding == embedding
        assert policy.settings.device_features == "loads"
        assert policy.settings.node_features == "costs-and-times"
        published = load_policy(folder / "policies" / f"published-{embedding}-0.safetensors")
        usual = preset("paper")
        assert published.settings.embedding == embedding
        assert published.settings.node_features == usual.node_features
        assert published.settings.reward == usual.reward
        assert published.settings.updates == 3 * policy.settings.updates
        assert cell(page, f"{title} | as published", 4) == paper


def test_each_change_of_hyperparameters_is_told_beside_none(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    both = "messages=plain,device_features=loads,updates=3"
    change = ["--vary", "message-rounds=3", "--vary", both]
    succeed("experiment", "hyperparameters", "cifar10", SMOKE, *change, "-o", folder)
    page = check_complete(folder, pictures=1, width=1300)
    trials = trials_of(folder)
    for variant, seen in (
        ("unchanged", (2, "residual", "loads-and-lookahead", 5)),
        ("message_rounds=3", (3, "residual", "loads-and-lookahead", 5)),
        (both, (2, "plain", "loads", 3)),
    ):
        chosen = load_policy(folder / "policies" / f"{variant}-0.safetensors").settings
        found = (chosen.message_rounds, chosen.messages, chosen.device_features, chosen.updates)
        assert found == seen
        costs = [
            {
                record["graph"]: record["cost"]
                for record in trials.values()
                if record["scheme"] == scheme
            }
            for scheme in (variant, "unchanged")
        ]
        assert len(costs[0]) == 2
        mean = np.mean([costs[0][graph] / costs[1][graph] for graph in costs[0]])
        assert cell(page, variant, 2) == f"{100 * (mean - 1):+.1f} %"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("message_rounds", "expected NAME=VALUE, got 'message_rounds'"),
        ("rounds=2", "--vary rounds: expected one of embedding, "),
        ("message_rounds=few", "--vary message_rounds: expected a number, got 'few'"),
        ("messages=fancy", "messages: expected one of 'plain', 'residual', got 'fancy'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(change: str, message: str, tmp_path: Path) -> None:
    arguments = ("hyperparameters", "cifar10", SMOKE, "--vary", change, "-o", tmp_path / "results")
    assert message in fail("experiment", *arguments)


def test_rewards_are_learned_from_and_their_last_episode_is_told(kinds_of_reward: Path) -> None:
    page = check_complete(kinds_of_reward, pictures=2)
    trials = trials_of(kinds_of_reward)
    for reward, per_episode, discount in (
        ("intermediate", 12, 0.9),
        ("intermediate-undiscounted", 12, 1.0),
        ("terminal", 1, 1.0),
        ("published-intermediate", 12, 1.0),
        ("published-terminal", 1, 1.0),
    ):
        updates = 3 * UPDATES if reward.startswith("published") else UPDATES
        validations = 0 if reward.startswith("published") else 2
        policy = load_policy(kinds_of_reward / "policies" / f"{reward}-0.safetensors")
        assert policy.settings.return_discount == discount
        for seed in range(2):
            learned = trials[f"seed{seed}/training/{reward}-{seed}"]
            assert [row[0] for row in learned["updates"]] == list(range(1, updates + 1))
            sampled = updates * 4 * per_episode + validations
            assert learned["evaluations"] == sampled
            steps = trials[f"seed{seed}/nmt-1/{reward}-final-episode"]["steps"]
            assert len(steps) == 12 + 1
        assert cell(page, reward, 5) == f"{sampled:,}"


def test_orders_of_traversal(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path, num_layers=12), tmp_path / "results"
    succeed("experiment", "traversal", path.parent / "graph.txt", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=1)
    placed = {record["graph"] for record in trials_of(folder).values() if record["graph"]}
    orders = {name.rpartition("-order-")[2] for name in placed if "-order-" in name}
    assert orders == {"4", "5", "6", "7"}
    assert cell(page, "RNN zero-shot", 6) == "about +30 %"


def test_curves_on_the_simulator(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path, num_layers=12), tmp_path / "results"
    command = ["experiment", "simulator-curves", path, "nmt:1", SMOKE, "--seeds=2"]
    succeed(*command, "-o", folder)
    page = check_complete(folder, pictures=2)
    assert "No placement was run on hardware" in page
    assert page.count("\n| Placeto optimized |") == 2


def test_a_measured_curve_is_drawn_beside_what_was_finished(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path, num_layers=12), tmp_path / "results"
    command = ["experiment", "simulator-curves", path, SMOKE, "-o", folder]
    succeed(*command)
    before = (folder / "problem.png").read_bytes()
    trials = (folder / "trials.jsonl").read_bytes()
    measured = tmp_path / "measured.csv"
    measured.write_text("evaluations,runtime\n8,0.06\n64,0.05\n")
    succeed(*command, "--measured", measured)
    assert "Measured on hardware" in (folder / "results.md").read_text()
    assert (folder / "problem.png").read_bytes() != before
    assert (folder / "trials.jsonl").read_bytes() == trials
    for wrong in ("", "a,b\n1,2\n", "evaluations,runtime\n", "evaluations,runtime\n1,x\n"):
        measured.write_text(wrong)
        assert "measured.csv: expected" in fail(*command, "--measured", measured)
    assert "No such file" in fail(*command, "--measured", tmp_path / "none.csv")
    several = ["experiment", "simulator-curves", path, "nmt:1", SMOKE, "-o", tmp_path / "b"]
    measured.write_text("evaluations,runtime\n8,0.06\n")
    assert "--measured: expected one source" in fail(*several, "--measured", measured)


@pytest.mark.slow
def test_table1_has_the_papers_rows_beside_ours(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    succeed("experiment", "table1", SMOKE, "-o", folder)
    page = check_complete(folder, pictures=6)
    ours = [line.split(" | ") for line in page.splitlines() if line.startswith("| ours |")]
    papers = [line.split(" | ") for line in page.splitlines() if line.startswith("| paper |")]
    assert [row[4] for row in ours] == [row[4] for row in papers] == ["2", "4"] * 3
    assert [float(row[7]) for row in papers] == [row.placeto for row in TABLE_1]
    trials = trials_of(folder)
    names = ["inception-v3", "inception-v3", "nmt-2", "nmt-4", "nasnet", "nasnet"]
    published = [line.split(" | ") for line in page.splitlines() if "| as published |" in line]
    boxed = [line.split(" | ") for line in page.splitlines() if "| in the box |" in line]
    for rows, scheme in ((ours, "placeto"), (published, "published"), (boxed, "pretrained")):
        for row, name in zip(rows, names, strict=True):
            runtime = trials[f"seed0/{name}-{row[4]}xk80/{scheme}"]["runtime"]
            assert float(row[7]) == pytest.approx(runtime, rel=1e-3)
    for name in PLACER_NAMES:
        count = 6 + (name in SEARCHES)
        assert page.count(f"\n| {SCHEMES[name].title} |") == count
    assert cell(page, "Local search", 5).startswith("100.0 %: ")  # as fast as itself
    until = [
        trials[f"seed0/nasnet-4xk80/{name}"]["evaluations_to_best"] for name in ("published", "rnn")
    ]
    episodes, rnn = until[0] / 12, until[1]
    assert cell(page, "nasnet-4xk80", 4) == f"{episodes:,.0f}"
    assert cell(page, "nasnet-4xk80", 6) == f"{rnn / episodes:.2f}"
    page = page.partition("## What the number of groups is worth")[2]
    finer = trials["seed0/nasnet-4xk80/coarse-to-fine-finer"]
    assert len(finer["placement"]) > 12
    assert cell(page, "nasnet-4xk80", 6) == f"{len(finer['placement']):,}"
    gain = 1 - finer["cost"] / trials["seed0/nasnet-4xk80/coarse-to-fine"]["cost"]
    assert cell(page, "nasnet-4xk80", 8) == f"{100 * gain:.1f} %"
    check_a_failure_in_finer_groups_is_told(folder)


def check_a_failure_in_finer_groups_is_told(folder: Path) -> None:
    log = folder / "trials.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:
        if record["key"] == "seed0/nasnet-2xk80/coarse-to-fine-finer":
            labels = {name: record[name] for name in ("key", "took", "scheme", "graph", "seed")}
            record.clear()
            record.update(labels, type="failed", error="no luck")
    log.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    told = fail("experiment", "table1", SMOKE, "-o", folder, code=1)
    assert "nasnet on 2xk80, coarse-to-fine-finer: no luck" in told
    page = (folder / "results.md").read_text().partition("## What the number of groups is worth")[2]
    assert "| nasnet-4xk80 |" in page
    assert "| nasnet-2xk80 |" not in page


def test_what_was_interrupted_goes_on_to_the_same_results(family: Path, tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    shutil.copytree(family, folder)
    lines = (folder / "trials.jsonl").read_bytes().splitlines(keepends=True)
    kept = len(lines) // 2
    (folder / "trials.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:40])
    for path in folder.glob("results.*"):
        path.unlink()
    command = ["experiment", "generalise", "nmt", SMOKE, "--seeds=2", "-o", folder]
    succeed(*command)
    assert trials_of(folder) == trials_of(family)
    content = (folder / "trials.jsonl").read_bytes()
    assert content.startswith(b"".join(lines[:kept]))
    check_complete(folder, pictures=1, width=1300)
    succeed(*command)  # nothing is left to do
    assert (folder / "trials.jsonl").read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_training_goes_on_in_its_middle(
    number: signal.Signals, kinds_of_reward: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    paused = start_paused(tmp_path / "pause", 11, "experiment", *KINDS_OF_REWARD, "-o", folder)
    log = folder / "policies" / "intermediate-0.jsonl"
    assert len(log.read_text().splitlines()) == 11
    output, errors = paused.send(number)
    if number == signal.SIGINT:
        assert (paused.process.returncode, output) == (130, "")
        stopped = "placeto: error: stopped after 0 of 24 trials; the same command goes on"
        assert errors.splitlines()[-1] == stopped
        assert "Traceback" not in errors
    checkpoint = load_policy(folder / "policies" / "intermediate-0.safetensors")
    assert checkpoint.settings.updates == UPDATES
    succeed("experiment", *KINDS_OF_REWARD, "-o", folder)
    assert trials_of(folder) == trials_of(kinds_of_reward)
    assert len(log.read_text().splitlines()) == UPDATES


@pytest.mark.slow
def test_several_processes_stop_and_come_to_the_same(kinds_of_reward: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    paused = start_paused(
        tmp_path / "pause", 3, "experiment", *KINDS_OF_REWARD, "--jobs=2", "-o", folder
    )
    _, errors = paused.send(signal.SIGINT)
    assert paused.process.returncode == 130
    assert errors.splitlines()[-1].endswith("of 24 trials; the same command goes on")
    assert "Traceback" not in errors
    succeed("experiment", *KINDS_OF_REWARD, "--jobs=2", "-o", folder)
    assert trials_of(folder) == trials_of(kinds_of_reward)


def test_other_options_are_refused(kinds_of_reward: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(kinds_of_reward, folder)
    command = ["experiment", "rewards", "nmt:1", SMOKE, "-o", folder]
    before = trials_of(folder)
    assert "begun with other options: seeds [0, 1], not [0]; --force" in fail(*command)
    same = [*command, "--seeds=2"]
    assert f"other options: updates {UPDATES}, not 5; --force" in fail(*same)
    same.append(f"--updates={UPDATES}")
    assert "other options: hidden_units 16, not 8" in fail(*same, "--set=hidden_units=8")
    assert "other options: discount" in fail(*same, "--set=discount=0.5")
    assert "other options: gpus 2, not 4" in fail(*same, "--gpus=4")
    assert 'other options: experiment "rewards", not "traversal"; --force' in fail(
        "experiment", "traversal", "nmt:1", SMOKE, "-o", folder
    )
    assert trials_of(folder) == before
    succeed(*command, "--force")
    assert len(trials_of(folder)) == 12


def test_what_cannot_be_begun_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    rewards = ["experiment", "rewards", "nmt:1", SMOKE, "-o", folder]
    assert "Missing argument" in fail("experiment", "generalise", "-o", folder)
    assert "got 'no'" in fail("experiment", "generalise", "no", "-o", folder)
    assert "Missing option '-o'" in fail("experiment", "rewards")
    assert "--graphs: this experiment has none to choose" in fail(*rewards, "--graphs=3")
    assert "--set x: expected one of embedding" in fail(*rewards, "--set=x=1")
    assert "--set hidden_units: expected a number" in fail(*rewards, "--set=hidden_units=many")
    assert "workers: expected an integer >= 1" in fail(*rewards, "--set=workers=0")
    assert "hidden_size: expected an even number" in fail(*rewards, "--rnn-set=hidden_size=3")
    assert "--rnn-set x: expected one of hidden_size" in fail(*rewards, "--rnn-set=x=3")
    assert "--set updates: expected --updates in its place" in fail(*rewards, "--set=updates=3")
    assert "--set updates: expected --evaluations in its place" in fail(
        "experiment", "table1", SMOKE, "-o", folder, "--set=updates=3"
    )
    assert "--rnn-set evaluations: expected --rnn-evaluations" in fail(
        *rewards, "--rnn-set=evaluations=3"
    )
    assert "another of default, general, fine-tuning, paper" in fail(*rewards, "--preset=best")
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
    curves = ["experiment", "simulator-curves", "a/graph.txt", "b/graph.txt", SMOKE]
    assert "graph: expected sources of different names" in fail(*curves, "-o", tmp_path / "b")


def test_the_preset_of_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    command = ["experiment", "rewards", "nmt:1", SMOKE, "--updates=1"]
    succeed(*command, "--preset=paper", "--set=baseline_window=7", "-o", folder)
    settings = json.loads((folder / "experiment.json").read_text())["options"]["settings"]
    assert settings["discount"] == 1.0
    assert {path.stem for path in (folder / "policies").glob("*.safetensors")} == {
        "intermediate-0",
        "terminal-0",
        "counterfactual-0",
        "published-intermediate-0",
        "published-terminal-0",
    }  # its returns are never discounted
    assert settings["baseline_window"] == 7
    assert settings["hidden_units"] == 16  # of the scale


def test_all_experiments_are_one_command_that_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    command = ["experiment", "all", "rewards", "measured-curves", SMOKE, "-o", folder]
    succeed(*command, "--jobs=2")
    pages = {
        name: (folder / name / "results.md").read_text() for name in ("rewards", "measured-curves")
    }
    first = {name: page.splitlines()[2] for name, page in pages.items()}
    assert first["rewards"].startswith("`placeto experiment rewards nmt:0 --scale smoke`, ")
    told = first["measured-curves"]
    assert told.startswith("`placeto experiment measured-curves nmt-2 --scale smoke`, ")
    assert "seeds 0, " in told
    taken = [
        json.loads(line)["took"]
        for line in (folder / "measured-curves" / "trials.jsonl").read_text().splitlines()
    ]
    assert f"{clock(sum(taken))} in all." in told
    succeed(*command, "--jobs=2")  # is there already, and stays as it is
    assert pages == {name: (folder / name / "results.md").read_text() for name in pages}
    refused = fail("experiment", "fidelity", SMOKE, "--jobs=2", "-o", folder / "fidelity")
    assert "--jobs: expected 1" in refused
    assert "expected rewards, or another of" in fail("experiment", "all", "reward", "-o", folder)
