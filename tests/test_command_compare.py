"""``placeto compare``: tables, files, and how it goes on."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_runs import (
    SMALL_NMT,
    build_profile,
    check_picture,
    fail,
    invoke,
    legend_of,
    succeed,
    succeed_json,
)
from placeto.outputs import file_name
from placeto.placing.placers import PLACER_NAMES, PLACERS
from placeto.texts import seconds_text
from placeto.trials.comparing import chosen_budgets
from placeto.trials.comparison import read_curves
from placeto.trials.placing_tasks import Place
from placeto.trials.records import Record
from placeto.trials.trials import Watch, Workspace
from placeto_graphs import load_placement, load_problem, parse_cluster, save_cluster
from placeto_simulator import Simulator

# Two updates of eight episodes on eight groups; with three devices each looks at 16 placements.
BUDGET = ["--max-evaluations=400", "--rnn-max-evaluations=20"]


def placer(problem: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the report of one placer."""
    found: dict[str, Any] = next(s for s in problem["placers"] if s["name"] == name)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison of every placer, with two seeds, on two clusters."""
    folder = tmp_path_factory.mktemp("comparison") / "results"
    gpus = ["--gpus=2", "--gpus=3"]
    succeed("compare", "nmt-2", *SMALL_NMT, *gpus, *BUDGET, "--seeds=2", "-o", folder)
    return folder


def test_every_placer_is_compared_by_one_evaluator(results: Path) -> None:
    report = json.loads((results / "results.json").read_text())
    assert [problem["cluster"] for problem in report["problems"]] == ["2xk80", "3xk80"]
    for problem in report["problems"]:
        assert [s["name"] for s in problem["placers"]] == list(PLACER_NAMES)
        name_of_problem = f"nmt-2-{problem['cluster']}"
        path = results / "problems" / f"{name_of_problem}.json.gz"
        placements = results / "placements" / name_of_problem
        simulator = Simulator(load_problem(path))
        for found in problem["placers"]:
            name, runs = found["name"], found["runs"]
            assert found["error"] is None
            assert len(runs) == (2 if PLACERS[name].random else 1)
            if name != "cpu":  # its runs are on a device of their own
                assert all(run["runtime"] >= problem["lower_bound"] for run in runs)
                placement = load_placement(placements / f"{name}.json", simulator.problem)
                best = min(run["runtime"] for run in runs)
                assert simulator.runtimes(placement[None])[0] == best


def test_learning_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    succeed("plot", "curves", results, "-o", tmp_path / "curves.png")
    searches = {placer.title for placer in PLACERS.values() if placer.budget}
    of_one = legend_of(check_picture(results / "nmt-2-3xk80.png", width=900))
    assert searches | {PLACERS["single"].title, "lower bound"} <= set(of_one)
    of_both = legend_of(check_picture(tmp_path / "curves.png", width=900))
    expected = {f"{title}, nmt-2 on {gpus}xk80" for title in searches for gpus in (2, 3)}
    assert expected == set(of_both)
    for legend in (of_one, of_both):
        assert len(set(legend)) == len(legend)


def test_micro_batches_are_compared_with_the_undivided_step_on_one_device(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    compare = ["compare", path, "--placers=cpu,single,heft", "--micro-batches=4"]
    text = succeed(*compare, "--micro-batches=1", "-o", tmp_path / "results")
    assert "Speed-up over a single GPU without micro-batching" in text
    report = json.loads((tmp_path / "results" / "results.json").read_text())["problems"]
    divided, whole = report
    assert divided["source"] == "problem in 4 micro-batches"
    assert divided["groups"] == whole["groups"] == load_problem(path).num_groups
    assert divided["ops"] > 2 * whole["ops"]
    alone = placer(whole, "single")["runs"][0]["runtime"]
    page = (tmp_path / "results" / "results.md").read_text().splitlines()
    rows = [line.strip("|").split(" | ")[2:] for line in page if line.startswith(f"| {path} |")]
    heft = [placer(each, "heft")["runs"][0]["runtime"] for each in (whole, divided)]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [number, seconds_text(alone), f"{alone / runtime:.2f}"]
        for number, runtime in zip("14", heft, strict=True)
    ]
    assert "micro-batching" not in succeed(*compare)  # there is nothing to compare with


def test_a_kind_without_known_times_leaves_out_the_cpu_only(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    text = succeed("compare", path, "--placers=cpu,heft")
    assert "HEFT" in text
    report = succeed_json("compare", path, "--placers=cpu,heft")
    assert "cpu" in placer(report["problems"][0], "cpu")["error"]


def stop_before(name: str, patched: pytest.MonkeyPatch, seed: int | None = None) -> None:
    """Press Ctrl-C when a placer is about to place, with a seed if it is given."""
    run = Place.run

    def run_or_stop(task: Place, workspace: Workspace, watch: Watch) -> Record:
        if task.label == name and seed in {None, task.seed}:
            os.kill(os.getpid(), signal.SIGINT)
            watch.update("goes on until it looks")
        return run(task, workspace, watch)

    patched.setattr(Place, "run", run_or_stop)


def test_ctrl_c_leaves_the_table_so_far_and_the_same_command_goes_on(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    command = ["compare", path, "--placers=local-search,heft", "--max-evaluations=50", "-o", folder]
    with pytest.MonkeyPatch.context() as patched:
        stop_before("local-search", patched)
        result = invoke(*command)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "placeto: error: stopped after 2 of 3 trials; the same command resumes"
    )
    assert "\nHEFT " in result.stdout
    (problem,) = json.loads((folder / "results.json").read_text())["problems"]
    assert [found["name"] for found in problem["placers"]] == ["heft"]
    assert "| HEFT |" in (folder / "results.md").read_text()
    before = (folder / "trials.jsonl").read_bytes()
    succeed(*command)
    assert (folder / "trials.jsonl").read_bytes().startswith(before)
    (problem,) = json.loads((folder / "results.json").read_text())["problems"]
    assert [found["name"] for found in problem["placers"]] == ["heft", "local-search"]


def test_limits_and_seeds_make_other_trials(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    trials = []
    for options in ([], ["--seeds=2"], ["--seeds=2"], ["--seeds=2", "--max-evaluations=7"]):
        succeed("compare", path, "--placers=scotch,random", *options, "-o", folder)
        trials.append((folder / "trials.jsonl").read_bytes().splitlines())
        assert trials[-1][: len(trials[-2:][0])] == trials[-2:][0]
    assert list(map(len, trials)) == [3, 5, 5, 9]
    (problem,) = json.loads((folder / "results.json").read_text())["problems"]
    assert [run["evaluations"] for run in placer(problem, "random")["runs"]] == [7, 7]


def test_what_is_stopped_leaves_nothing_of_an_earlier_cluster(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    devices = tmp_path / "devices.toml"
    command = ["compare", path, f"--cluster={devices}", "--placers=heft", "-o", folder]
    best = folder / "placements" / "problem-devices" / "heft.json"
    save_cluster(parse_cluster("2xv100"), devices)
    assert "report.html" in succeed(*command)
    assert best.exists()
    save_cluster(parse_cluster("3xv100"), devices)
    with pytest.MonkeyPatch.context() as patched:
        stop_before("heft", patched)
        stopped = invoke(*command)
    assert stopped.exit_code == 130
    assert "report.html" not in stopped.stdout
    assert not (folder / "report.html").exists()
    assert not best.exists()


def test_clusters_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path, quick = build_profile(tmp_path), parse_cluster("2xv100")
    slow = tuple(replace(device, op_overhead=0.5) for device in quick.devices)
    files = [tmp_path / name for name in ("a/d.toml", "d-3.toml", "b/d.toml")]
    for file, cluster in zip(files, (quick, quick, replace(quick, devices=slow)), strict=True):
        file.parent.mkdir(exist_ok=True)
        save_cluster(cluster, file)
    report = succeed_json(
        "compare", path, "--placers=single", *(f"--cluster={file}" for file in files)
    )
    alone = {one["cluster"]: placer(one, "single")["runs"][0] for one in report["problems"]}
    assert list(alone) == [str(files[0]), "d-3", str(files[2])]
    runtimes = [run["runtime"] for run in alone.values()]
    assert runtimes[0] == runtimes[1] < runtimes[2]


def test_names_that_are_taken_end() -> None:
    names: list[str] = []
    for name in ("a/d", "a-d-3", "a:d", "a d", "?", "..", "a-d-"):
        names.append(file_name(name, names))
    assert names == ["a-d", "a-d-3", "a-d-2", "a-d-4", "problem", "problem-2", "a-d-5"]


def test_a_budget_is_that_of_the_placer_unless_it_is_to_be_full() -> None:
    usual, full = (chosen_budgets(PLACERS, full=full) for full in (False, True))
    assert usual == {name: spec.budget for name, spec in PLACERS.items()}
    assert full["placeto"] == full["rnn"] == 100_000


def test_problems_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    paths = [build_profile(tmp_path), build_profile(other, num_layers=14)]
    chosen = ["--placers=heft,random", "--max-evaluations=20"]
    succeed("compare", *paths, *chosen, "-o", tmp_path / "results")
    curves = read_curves([tmp_path / "results"])
    assert list(curves) == [f"Random, problem ({path}) on 2xv100" for path in paths]
    same = [paths[0], other / ".." / paths[0].name]
    again = succeed_json("compare", *same, "--placers=heft", "--gpus=2", "--gpus=2")
    assert [one["source"] for one in again["problems"]] == ["problem"]
    folder = tmp_path / "results" / "problems"
    names = ["problem-2xv100", "problem-2xv100-2"]
    groups = [load_problem(folder / f"{name}.json.gz").num_groups for name in names]
    assert groups == [10, 14]


def test_a_cpu_of_its_own_places_nothing_on_the_gpus(tmp_path: Path) -> None:
    command = ["compare", "nmt-2", *SMALL_NMT, "--placers=cpu,single"]
    succeed(*command, "--gpus=1", "-o", tmp_path / "a")
    placements = tmp_path / "a" / "placements" / "nmt-2-1xk80"
    assert [path.name for path in placements.iterdir()] == ["single.json"]
    (problem,) = json.loads((tmp_path / "a" / "results.json").read_text())["problems"]
    cpu, single = (placer(problem, name)["runs"][0] for name in ("cpu", "single"))
    assert cpu["runtime"] != single["runtime"]
    succeed(*command, "--cluster=1xcpu+1xk80", "-o", tmp_path / "b")
    folder, name = tmp_path / "b", "nmt-2-1xcpu+1xk80"
    problem = load_problem(folder / "problems" / f"{name}.json.gz")
    placement = load_placement(folder / "placements" / name / "cpu.json", problem)
    assert placement.tolist() == [0] * 8


def test_results_that_are_none_are_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    wrong = '{"seeds": 1, "budgets": {}, "problems": [{"source": 3}]}'
    for content, problem in (
        ("{", "Input data was truncated"),
        (wrong, "Expected `str`, got `int` - at `$.problems[0].source`"),
    ):
        path.write_text(content)
        line = fail("plot", "curves", tmp_path, "-o", tmp_path / "a.png")
        assert f"{path}: expected what `placeto compare` writes: {problem}" in line
