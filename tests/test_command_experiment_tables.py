"""``placeto experiment``: tables of placers and policies, on known graphs and on unseen ones."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from command_runs import build_profile, succeed
from experiment_folders import SMOKE, cell, check_complete, placed, policy_of, trials_of
from placeto.placing.placers import PLACER_NAMES, PLACERS
from placeto.trials.comparing import Describe
from placeto.trials.trials import Experiment, Record, Results
from placeto_experiments.paper import table1 as table1_module
from placeto_experiments.paper.generalise import SHOWN
from placeto_experiments.paper.plan import chosen_plan
from placeto_experiments.paper.table1 import SEARCHES, table1
from placeto_graphs import load_problem
from placeto_policy import preset


def graphs_of(folder: Path) -> set[str]:
    """Return the graphs that were placed."""
    return {name.split("/")[1] for name in trials_of(folder) if name.count("/") == 2}


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    lines = page.partition(f"\n{heading}\n\n")[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of generalisation over small members of a family."""
    folder = tmp_path_factory.mktemp("generalise") / "results"
    succeed("experiment", "generalise", "cifar10", SMOKE, "--graphs=1", "-o", folder)
    return folder


def test_generalisation_is_told_of_unseen_graphs(family: Path) -> None:
    page = check_complete(family, pictures=1, width=1300)
    graphs, trials = sorted(graphs_of(family)), trials_of(family)
    costs = {
        name: np.array([trials[f"seed0/{graph}/{name}"]["cost"] for graph in graphs])
        for name in set(SHOWN) - {"single", "lower-bound"}
    }
    bounds = [trials[f"every-seed/{graph}/lower-bound"]["cost"] for graph in graphs]
    assert len(graphs) == 2
    assert all((of_placer >= bounds).all() for of_placer in costs.values())
    zero_shot = costs["placeto-zero-shot"]
    assert (costs["placeto-zero-shot-sampled"] <= zero_shot).all()
    told = cell(page, "Placeto (default configuration), zero-shot", 2)
    assert told.split()[0] == f"{np.mean(zero_shot / costs['placeto-trained']):.3f}"
    assert "| Random placement |" in page
    assert "Addanki et al. (2019)" in page


def test_no_test_graph_is_one_of_training(family: Path) -> None:
    placed = graphs_of(family)
    problems = {
        path.name.removesuffix(".json.gz"): path for path in (family / "problems").iterdir()
    }
    graphs = {name: load_problem(path).graph for name, path in sorted(problems.items())}
    to_choose_by = {name for name in graphs if name.endswith("-to-choose-by")}
    training = graphs.keys() - placed - to_choose_by
    assert (len(to_choose_by), len(training)) == (1, 2)
    assert len({name.partition("-granularity-")[0] for name in training}) == 1
    for some, others in ((placed, training | to_choose_by), (to_choose_by, training)):
        assert all(graphs[name] != graphs[other] for name in some for other in others)


def test_architectures_are_told_beside_the_paper(tmp_path: Path) -> None:
    folder, usual = tmp_path / "results", preset("paper")
    succeed("experiment", "architectures", "cifar10", SMOKE, "--graphs=1", "-o", folder)
    page = check_complete(folder, pictures=1)
    for embedding, title, paper in (
        ("message-passing", "Full embedding", "+0.0 %"),
        ("simple-partitioner", "Simple partitioner", "+13.0 %"),
        ("simple-aggregator", "Simple aggregator", "+20.0 %"),
    ):
        own = policy_of(folder, f"{embedding}-0").settings
        published = policy_of(folder, f"paper-{embedding}-0").settings
        assert own.embedding == published.embedding == embedding
        assert (own.device_features, own.node_features) == ("loads", "costs-and-times")
        assert (published.node_features, published.reward) == (usual.node_features, usual.reward)
        assert published.updates == 3 * own.updates
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
    for number, (name, gpus) in enumerate((("nmt-2", 2), ("nmt-4", 4))):
        row = rows[2 * number + 1]
        assert row[0] == f"{name} on {gpus}xk80"
        for column, placer in ((5, "rnn"), (6, "placeto"), (7, "paper")):
            runtime = trials[f"seed0/{name}-{gpus}xk80/{placer}"]["runtime"]
            assert float(row[column]) == pytest.approx(runtime, rel=1e-3)
    for name in PLACER_NAMES:
        assert page.count(f"\n| {PLACERS[name].title} |") == 2 + (name in SEARCHES)
    assert "*f* |" not in page  # smaller models are not fitted
    assert cell(page, "Local search", 5).startswith("100.0 %: ")  # as fast as itself
    steps = {
        name: trials[f"seed0/nmt-4-4xk80/{name}"]["evaluations_to_best"]
        for name in ("paper", "rnn")
    }
    assert cell(page, "nmt-4-4xk80", 4) == f"{steps['paper'] / 12:,.0f}"  # episodes
    assert cell(page, "nmt-4-4xk80", 6) == f"{12 * steps['rnn'] / steps['paper']:.2f}"


def finished(experiment: Experiment) -> dict[str, Record]:
    """Return a record of each trial of a comparison."""
    known = {"devices": ["k80:0"], "gpus": 1, "ops": 1, "groups": 1}
    return {
        trial.name: msgspec.structs.replace(trial.task.problem, **known)
        if isinstance(trial.task, Describe)
        else placed()
        for trial in experiment.trials
    }


def test_cells_that_are_fitted_to_the_papers_times_are_marked() -> None:
    experiment = table1(chosen_plan("table1", "small", seeds=1))
    records = finished(experiment)
    rows = rows_of("\n\n".join(experiment.page(Results(records)).parts), "## Runtimes")
    found = [(row[0], [cell.endswith(" *f*") for cell in row[1:]]) for row in rows]
    both, cpu, none = ([cell in cells for cell in range(7)] for cells in ({0, 1}, {0}, set[int]()))
    fitted = {"inception-v3": both, "nmt-4": cpu, "nasnet": both}
    assert [name for name, _ in found[::2]] == [
        f"*paper*: {model}, {gpus} K80s"
        for model in ("Inception-V3", "NMT", "NASNet")
        for gpus in (2, 4)
    ]
    assert [row[7] for row in rows[::2]] == ["1.18", "1.13", "2.32", "2.63", "0.86", "0.74"]
    assert all(marks == fitted.get(name.partition(" on ")[0], none) for name, marks in found)
    some = {name: record for name, record in records.items() if "inception" not in name}
    page = experiment.page(Results(some)).parts
    first, second, *_ = rows_of("\n\n".join(page), "## Runtimes")
    assert (first[0], second[0]) == ("*paper*: NMT, 2 K80s", "nmt-2 on 2xk80")
