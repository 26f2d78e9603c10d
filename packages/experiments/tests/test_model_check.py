"""The table of models: each in a process of its own, which may fail, hang or eat memory."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from placeto import load_model_graph
from placeto.errors import InputError
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto.progress import PlainProgress
from placeto_experiments.model_check import (
    Report,
    check,
    check_all,
    check_models,
    main,
    model_table,
    searched,
)
from placeto_graphs import parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import MODELS, training_step

SIZES = {"steps": 2, "batch_size": 2, "units": 8, "vocabulary_size": 20}
SMALL = " ".join(["nmt-2", *(f"{name}={size}" for name, size in SIZES.items())])


def checked(
    *models: str, time_limit: float = 120.0, memory_limit: float = 1e12
) -> tuple[list[Report], str]:
    shown = io.StringIO()
    reports = check_all(
        models,
        PlainProgress(shown),
        search_seconds=0.1,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    return reports, shown.getvalue()


def test_a_row_has_the_numbers_of_the_model() -> None:
    (report,), shown = checked(SMALL)
    graph = load_model_graph("nmt-2", **SIZES)
    source = Source("nmt-2", graph, rules=MODELS["nmt-2"].colocation_rules)
    problem = make_problem(source, parse_cluster("4xv100"))
    alone = Simulator(problem).evaluate(np.zeros((1, problem.num_groups), np.int32))
    model = training_step("nmt-2", steps=2, batch_size=2, units=8, vocabulary_size=20).model
    assert report["ops"] == graph.num_ops
    assert report["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert report["flops"] == graph.flops.sum()
    assert report["groups"] == problem.num_groups
    assert report["one_device"] == alone.runtime[0]
    assert 0 < report["searched"] <= report["one_device"]
    assert report["one_device_fits"]
    assert report["searched_fits"]
    assert shown.splitlines()[0].startswith(f"1 of 1: {SMALL}: {graph.num_ops:,} ops, ")


@pytest.mark.filterwarnings("default")  # which the process of a model changes
def test_what_goes_wrong_in_the_process_of_a_model_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main("nmt-3", "0.1")
    assert json.loads(capsys.readouterr().out)["error"].startswith("name: expected one of ")


def test_a_process_that_takes_too_much_is_ended() -> None:
    (late,), shown = checked(SMALL, time_limit=0.05)
    assert late["error"] == "expected at most 0 s, and took longer"
    assert shown.startswith(f"1 of 1: {SMALL}: expected at most 0 s, and took longer, ")
    (large,), _ = checked(SMALL, memory_limit=1.0)
    assert large["error"] == "expected at most 0 GB, and took more"


def test_other_weights_than_the_librarys_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"ops": 1, "weight_bytes": 8, "captured_weight_bytes": 4}
    monkeypatch.setattr("placeto_experiments.model_check._run", lambda *_limits: answer)
    (report,), _ = checked(SMALL)
    assert report["error"] == "expected 8 bytes of weights, got 4"


def test_ctrl_c_leaves_the_rows_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"ops": 1, "weight_bytes": 4, "captured_weight_bytes": 4}])

    def run(*_limits: object) -> Report:
        try:
            return next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("placeto_experiments.model_check._run", run)
    assert [report["ops"] for report in checked(SMALL, SMALL, SMALL)[0]] == [1]


def test_what_does_not_fit_has_a_star() -> None:
    report = check(SMALL, 0.05)
    named = {"model": "nmt-2", **report, "one_device_fits": False}
    failed = {"model": "nmt-3", "error": "expected | something"}
    lines = model_table([named, failed]).markdown().splitlines()
    cells = [cell.strip() for cell in lines[2].split("|")]
    assert cells[-3].endswith("s*")
    assert not cells[-2].endswith("*")
    assert lines[3].startswith(r"| nmt-3 | expected \| something |")
    assert {line.count("|") - line.count(r"\|") for line in lines} == {10}


def test_what_is_searched_is_never_worse_than_one_device() -> None:
    cluster = parse_cluster("4xv100")
    problem = make_problem(Source("nmt-2", load_model_graph("nmt-2", **SIZES)), cluster)
    alone = Simulator(problem).evaluate(np.zeros((1, problem.num_groups), np.int32))
    runtime, fits = searched(problem, 0.05)
    assert runtime <= alone.runtime[0]
    assert fits
    tiny = [replace(device, memory_bytes=1) for device in cluster.devices]
    unfit = replace(problem, cluster=replace(cluster, devices=tuple(tiny)))
    assert not searched(unfit, 0.05)[1]


def test_the_command_prints_the_table_of_the_chosen_models(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_model: str, _seconds: float, time_limit: float, _memory: float) -> Report:
        return {"error": f"none in {time_limit} s"}

    monkeypatch.setattr("placeto_experiments.model_check._run", run)
    check_models.main(["--only", "timm:resnet", "--time-limit=7"], standalone_mode=False)
    printed = capfd.readouterr().out.splitlines()
    assert printed[2].startswith("| timm:resnet50 batch_size=4 | none in 7 s |")
    assert printed[-1].startswith("0 of 1 models")
    with pytest.raises(InputError, match="--only: expected a part of a name"):
        check_models.main(["--only", "keras"], standalone_mode=False)
