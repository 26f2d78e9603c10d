"""``placeto compare``: tables, files, and how it goes on."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

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
from placeto.placing.placers import PLACER_NAMES, PLACERS
from placeto.texts import seconds_text
from placeto.trials.comparison import chosen_limits
from placeto.trials.placing_tasks import Place
from placeto.trials.records import TrialRecord
from placeto.trials.tables import read_curves
from placeto.trials.trials import Watch, Workspace
from placeto_baselines import Limits
from placeto_graphs import load_placement, load_problem, parse_cluster, save_cluster
from placeto_simulator import Simulator

# Two updates of eight episodes on eight groups; with three devices each looks at 16 placements.
BUDGET = ["--max-evaluations=400", "--rnn-max-evaluations=20"]


def runs(problem: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the runs of one placer."""
    (runs_of_placer,) = (placer["runs"] for placer in problem["placers"] if placer["name"] == name)
    return runs_of_placer  # type: ignore[no-any-return]


def written(folder: Path) -> list[dict[str, Any]]:
    """Return the problems of the results of a folder."""
    problems: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["problems"]
    return problems


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "results"
    gpus = ["--gpus=2", "--gpus=3"]
    succeed("compare", "nmt-2", *SMALL_NMT, *gpus, *BUDGET, "--seeds=2", "-o", folder)
    return folder


def test_every_placer_is_compared_by_one_evaluator(results: Path) -> None:
    problems = written(results)
    assert [problem["cluster"] for problem in problems] == ["2xk80", "3xk80"]
    for problem in problems:
        assert [placer["name"] for placer in problem["placers"]] == list(PLACER_NAMES)
        stem = f"nmt-2-{problem['cluster']}"
        simulator = Simulator(load_problem(results / "problems" / f"{stem}.json.gz"))
        for placer in problem["placers"]:
            name, runtimes = placer["name"], [run["runtime"] for run in placer["runs"]]
            assert placer["error"] is None
            assert len(runtimes) == (2 if PLACERS[name].random else 1)
            if name != "cpu":  # its runs are on a device of their own
                assert min(runtimes) >= problem["lower_bound"]
                path = results / "placements" / stem / f"{name}.json"
                placement = load_placement(path, simulator.problem)
                assert simulator.runtimes(placement[None])[0] == min(runtimes)


def test_learning_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    succeed("plot", "curves", results, "-o", tmp_path / "curves.png")
    searches = {placer.title for placer in PLACERS.values() if placer.default_evaluations}
    of_one = legend_of(check_picture(results / "nmt-2-3xk80.png", width=900))
    assert searches | {PLACERS["single"].title, "lower bound"} <= set(of_one)
    of_both = legend_of(check_picture(tmp_path / "curves.png", width=900))
    expected = {f"{title}, nmt-2 on {gpus}xk80" for title in searches for gpus in (2, 3)}
    assert expected == set(of_both)
    for legend in (of_one, of_both):
        assert len(set(legend)) == len(legend)


def test_numbers_of_micro_batches_are_compared(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    compare = ["compare", path, "--placers=cpu,single,heft", "--micro-batches=4"]
    text = succeed(*compare, "--micro-batches=1", "-o", tmp_path / "results")
    title = f"{path} on 2xv100: runtime by number of micro-batches"
    assert title in text
    divided, whole = written(tmp_path / "results")
    assert divided["source"] == "problem in 4 micro-batches"
    assert divided["groups"] == whole["groups"] == load_problem(path).num_groups
    assert divided["ops"] > 2 * whole["ops"]
    page = (tmp_path / "results" / "results.md").read_text()
    table = page.partition(title)[2].split("\n\n")[1].splitlines()
    assert table[0] == "| placer | 1 | 4 |"
    rows = dict(line.strip("| ").split(" | ", 1) for line in table[2:])
    for name, row_title in (("single", "Single GPU"), ("heft", "HEFT")):
        costs = [runs(problem, name)[0]["runtime"] for problem in (whole, divided)]
        assert rows[row_title] == " | ".join(map(seconds_text, costs))
    assert "by number of" not in succeed(*compare)  # there is nothing to compare with


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_schedules_are_compared_with_the_waits_of_each_placement(
    schedule: str, tmp_path: Path
) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    options = ["--micro-batches=4", f"--schedule={schedule}"]
    compare = ["compare", path, *options, "--placers=heft,random,pretrained", "-o", folder]
    text = succeed(*compare, "--max-evaluations=20")
    assert f"runtime, {schedule}" in text
    (problem,) = written(folder)
    for name in ("heft", "random", "pretrained"):
        (best,) = (folder / "placements").glob(f"*/{name}.json")
        report = succeed_json("simulate", path, best, *options)
        assert report["runtime"] == runs(problem, name)[0]["runtime"]
        assert report["runtime"] >= problem["lower_bound"]
    assert (folder / "report.html").exists()


def test_a_schedule_needs_micro_batches_of_a_step(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    compare = ["compare", path, "--placers=heft", "--schedule=1f1b"]
    assert "--schedule: needs --micro-batches" in fail(*compare)
    assert "--schedule: excludes --objective throughput" in fail(
        *compare, "--micro-batches=2", "--objective=throughput"
    )


def test_a_kind_without_known_times_leaves_out_the_cpu_only(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    (problem,) = succeed_json("compare", path, "--placers=cpu,heft")["problems"]
    errors = {placer["name"]: placer["error"] for placer in problem["placers"]}
    assert errors["heft"] is None
    assert "cpu" in errors["cpu"]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return what runs a command in which Ctrl-C is pressed when a placer is about to place."""
    run = Place.run

    def invoke_and_stop(name: str, *command: object) -> Result:
        def run_or_stop(task: Place, workspace: Workspace, watch: Watch) -> TrialRecord:
            if task.label == name:
                os.kill(os.getpid(), signal.SIGINT)
                watch.update("goes on until it looks")
            return run(task, workspace, watch)

        with monkeypatch.context() as patched:
            patched.setattr(Place, "run", run_or_stop)
            return invoke(*command)

    return invoke_and_stop


def test_ctrl_c_leaves_the_table_so_far_and_the_same_command_goes_on(
    tmp_path: Path, stopped: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeto.progress.SECONDS_BETWEEN_LINES", 0.0)
    path, folder = build_profile(tmp_path), tmp_path / "results"
    command = ["compare", path, "--placers=local-search,heft", "--max-evaluations=50", "-o", folder]
    result = stopped("local-search", *command)
    assert result.exit_code == 130
    assert "1 of 3 trials; problem on 2xv100, heft\n" in result.stderr
    line = "placeto: error: stopped after 2 of 3 trials; run the same command again to resume"
    assert result.stderr.splitlines()[-1] == line
    assert "\nHEFT " in result.stdout
    assert [placer["name"] for placer in written(folder)[0]["placers"]] == ["heft"]
    assert "| HEFT |" in (folder / "results.md").read_text()
    trial_lines = (folder / "trials.jsonl").read_bytes()
    succeed(*command)
    assert (folder / "trials.jsonl").read_bytes().startswith(trial_lines)
    names = [placer["name"] for placer in written(folder)[0]["placers"]]
    assert names == ["heft", "local-search"]


def test_limits_and_seeds_make_other_trials(tmp_path: Path) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    trials = []
    for options in ([], ["--seeds=2"], ["--seeds=2"], ["--seeds=2", "--max-evaluations=7"]):
        succeed("compare", path, "--placers=scotch,random", *options, "-o", folder)
        trials.append((folder / "trials.jsonl").read_bytes().splitlines())
        assert trials[-1][: len(trials[-2:][0])] == trials[-2:][0]
    assert list(map(len, trials)) == [3, 5, 5, 9]
    assert [run["evaluations"] for run in runs(written(folder)[0], "random")] == [7, 7]


def test_what_is_stopped_leaves_nothing_of_an_earlier_cluster(
    tmp_path: Path, stopped: Callable[..., Result]
) -> None:
    path, folder = build_profile(tmp_path), tmp_path / "results"
    devices = tmp_path / "devices.toml"
    command = ["compare", path, f"--cluster={devices}", "--placers=heft", "-o", folder]
    best = folder / "placements" / "problem-devices" / "heft.json"
    save_cluster(parse_cluster("2xv100"), devices)
    assert "report.html" in succeed(*command)
    assert best.exists()
    save_cluster(parse_cluster("3xv100"), devices)
    assert "report.html" not in stopped("heft", *command).stdout
    assert not (folder / "report.html").exists()
    assert not best.exists()


def test_problems_and_clusters_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders, quick = [tmp_path / "a", tmp_path / "b"], parse_cluster("2xv100")
    slow = tuple(replace(device, op_overhead=0.5) for device in quick.devices)
    paths = []
    for folder, devices in zip(folders, (quick.devices, slow), strict=True):
        folder.mkdir()
        paths.append(build_profile(folder, num_layers=10 if folder == folders[0] else 14))
        save_cluster(replace(quick, devices=devices), folder / "d.toml")
    files = [folder / "d.toml" for folder in folders]
    chosen = ["--placers=single,random", "--max-evaluations=20", "-o", tmp_path / "results"]
    succeed(
        "compare",
        *paths,
        folders[1] / ".." / "a" / paths[0].name,
        *chosen,
        *(f"--cluster={file}" for file in (*files, files[0])),
    )
    problems = written(tmp_path / "results")
    named = [(path, cluster) for path in paths for cluster in files]
    assert [problem["cluster"] for problem in problems] == [str(file) for _, file in named]
    assert [problem["groups"] for problem in problems] == [10, 10, 14, 14]
    alone = [runs(problem, "single")[0]["runtime"] for problem in problems]
    assert alone[0] < alone[1]
    expected = [f"Random, problem ({path}) on {cluster}" for path, cluster in named]
    assert list(read_curves([tmp_path / "results"])) == expected


def test_a_budget_is_that_of_the_placer_unless_it_is_to_be_full() -> None:
    usual, full = (chosen_limits(PLACERS, Limits(), full=full) for full in (False, True))
    defaults = {name: spec.default_evaluations for name, spec in PLACERS.items()}
    assert {name: limits.max_evaluations for name, limits in usual.items()} == defaults
    assert {full[name].max_evaluations for name in ("placeto", "rnn")} == {100_000}


def test_a_cpu_of_its_own_places_nothing_on_the_gpus(tmp_path: Path) -> None:
    command = ["compare", "nmt-2", *SMALL_NMT, "--placers=cpu,single"]
    succeed(*command, "--gpus=1", "-o", tmp_path / "a")
    placements = tmp_path / "a" / "placements" / "nmt-2-1xk80"
    assert [path.name for path in placements.iterdir()] == ["single.json"]
    (problem,) = written(tmp_path / "a")
    assert runs(problem, "cpu")[0]["runtime"] != runs(problem, "single")[0]["runtime"]
    succeed(*command, "--cluster=1xcpu+1xk80", "-o", tmp_path / "b")
    assert (tmp_path / "b" / "placements" / "nmt-2-1xcpu+1xk80" / "cpu.json").exists()


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
