"""What the pages of the lab name still runs; ``PLACETO_TESTS=all`` runs these tests."""

import argparse
from pathlib import Path
from typing import Any

import copies
import fidelity
import networkx as nx
import numpy as np
import pytest
import shards
from numpy.typing import NDArray

import measured_curves
import model_check
import search_comparison
import search_tables
from ledger import __main__ as ledger
from ledger.models import Transformer
from placeto import capture_step
from placeto_graphs import OpGraph, PlacementProblem, from_networkx, parse_cluster, save_problem
from placeto_simulator import Simulator


def test_the_ledger_has_the_ratios_of_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    ledger.main(["--only", "GPT-J"])
    lines = capsys.readouterr().out.splitlines()
    table = (Path(ledger.__file__).parent / "results.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "---" not in line]
    assert len(rows) > 2
    assert set(rows) <= set(table)


def test_the_reference_of_a_row_takes_its_published_time() -> None:
    """With more devices steps are slower, and two stages are faster than one device."""
    model: dict[str, Any] = {
        "layers": 4,
        "width": 32,
        "heads": 2,
        "words": 99,
        "batch": 2,
        "length": 8,
    }
    row = shards.Row("", "2x(4xv100)", model, {}, [], link="infiniband-edr", cards=2)
    whole = copies.in_one_group(capture_step(Transformer(**model).step()), row.devices)
    for way in ("copy", "keep", "shard"):
        reference = shards.Step(copies=4, seconds=0.1, way=way)
        fitted = row.fitted(whole, reference)
        assert row.simulated(fitted, reference) == pytest.approx(0.1, rel=1e-3)
        assert row.simulated(fitted, shards.Step(copies=8, seconds=0, way=way)) > 0.1
    alone = copies.with_step_time(whole, 0.1)
    stages = shards.Step(copies=4, seconds=0, stages=2, micro_batches=8)
    assert 0.8 / 2 < row.simulated(alone, stages) < 0.8


def test_the_fitted_fraction_is_the_one_that_speed_ups_were_simulated_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def captured(*_: str) -> OpGraph:
        step = nx.DiGraph([("images", "layer"), ("layer", "gradient")])
        step.add_nodes_from(
            ("images", "layer", "gradient", "update"), op_type="aten.add", bytes_accessed=1e6
        )
        step.add_node("gradient", phase=1)
        step.add_node("update", phase=2)
        step.add_edge("gradient", "update", bytes=10**9)
        return from_networkx(step)

    monkeypatch.setattr(copies, "captured", captured)
    row = copies.Row("lambda", "rtx3090", "bert-large", "float32", 8, [12.0, 20.0, 40.0])
    ratios = [
        ratio._replace(published=copies.speed_up(ratio, 0.4))
        for ratio in row.ratios(copies.DEFAULT_BUCKET)
    ]
    assert [ratio.seconds for ratio in ratios] == [8 / 12] * 2
    assert 1 < ratios[0].published < 2
    assert copies.fitted_fraction(ratios) == 0.4


def test_the_ledger_counts_clear_pairs_in_the_measured_order() -> None:
    times = [(1.0, 1.0), (1.05, 0.9), (2.0, 1.5), (3.0, 1.5)]  # measured, simulated
    rows = [ledger.Compared("", measured, simulated, 0.0) for measured, simulated in times]
    # The first two are measured as equal, the last two simulated as equal.
    assert ledger.orderings(rows) == (4, 5)


def test_a_model_that_takes_too_long_or_loses_weights_has_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (report,) = model_check.check_all(["nmt-2"], search_seconds=0.1, time_limit=0.01)
    assert report["error"] == "expected at most 0 s, and took longer"
    weights = {"ops": 1, "weight_bytes": 8, "captured_weight_bytes": 4}
    monkeypatch.setattr(model_check, "_run", lambda *_: weights)
    (report,) = model_check.check_all(["nmt-2"], search_seconds=0.1, time_limit=1.0)
    assert report["error"] == "expected 8 bytes of weights, got 4"
    assert model_check.success_line([report]).startswith("0 of 1 models (0.0 %)")


def test_the_search_is_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, _ = problem_on_two_devices(0)
    save_problem(problem, tmp_path / "chain.json.gz")
    options = {"problems": [str(tmp_path / "chain.json.gz")], "evaluations": [30], "seconds": []}
    root = search_comparison.ROOT
    arguments = argparse.Namespace(checkout=root, seeds=1, **options)
    search_comparison.compare(arguments, str(tmp_path))
    row, summary = capsys.readouterr().out.splitlines()
    assert row.startswith("| chain | max-evaluations 30 | ")
    assert row.endswith("| 1.000 |")
    assert summary.endswith("geometric mean 1.0000 of 1; worst 1.000 chain")


def test_a_model_is_checked() -> None:
    small = "nmt-2 steps=3 batch_size=4 units=8 vocabulary_size=20"
    (report,) = reports = model_check.check_all([small], search_seconds=0.1, time_limit=100)
    assert report["captured_weight_bytes"] == report["weight_bytes"] > 0
    assert report["searched"] <= report["one_device"]
    assert model_check.model_table(reports).rows[0][0] == small
    assert model_check.success_line(reports).startswith("1 of 1 models (100.0 %)")


def test_tables_of_bounds_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["ptb:3/2xk80", "--seeds", "1"]
    search_tables.main(["bounds", *short, "--seconds", "0.2"])
    search_tables.main(["search", *short, "--evaluations", "100", "500"])
    assert capsys.readouterr().out.count("| ptb:3/2xk80") == 2


TINY_MODEL = {"nmt-2": {"steps": 3, "batch_size": 4, "units": 16, "vocabulary_size": 20}}


def test_learning_on_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curves.png"
    monkeypatch.setattr(fidelity, "MODELS", TINY_MODEL)
    measured_curves.main(["nmt-2", "--evaluations", "12", "--picture", str(picture)])
    assert "| Two device processes |" in capsys.readouterr().out
    assert picture.stat().st_size


def test_steps_that_are_simulated_and_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"MODELS": TINY_MODEL, "PROFILE_RUNS": 2, "NUM_RANDOM": 1, "NUM_NEIGHBOURS": 1}
    for name, setting in {**small, "SEARCHES": ("expert",)}.items():
        monkeypatch.setattr(fidelity, name, setting)
    fidelity.main(["--runs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("| nmt-2 | real | ")]) == 1 + 7
    assert len([line for line in lines if line.startswith("| nmt-2 | 40.0 % | ")]) == 1 + 7


def problem_on_two_devices(seed: int) -> tuple[PlacementProblem, NDArray[np.int32]]:
    generator = np.random.default_rng(seed)
    chain = nx.gn_graph(12, seed=seed).reverse()
    nx.set_edge_attributes(chain, 10**6, "bytes")
    seconds = generator.uniform(0.0, 1.0, (12, 1))
    problem = PlacementProblem(
        graph=from_networkx(chain),
        cluster=parse_cluster("2xv100"),
        compute_time=np.tile(seconds, (1, 2)),
    )
    return problem, generator.integers(0, 2, 12, np.int32)


@pytest.mark.parametrize("seed", range(5))
def test_ops_take_what_their_overlaps_say(seed: int) -> None:
    problem, placement = problem_on_two_devices(seed)
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    start, end = timeline.op_start, timeline.op_end
    for op, shared in enumerate(fidelity.overlaps(timeline)):
        is_elsewhere = timeline.op_device != timeline.op_device[op]
        pairs = np.minimum(end[is_elsewhere], end[op]) - np.maximum(start[is_elsewhere], start[op])
        assert shared == pytest.approx(np.maximum(pairs, 0.0).sum(), abs=1e-9)
    alone = problem.compute_time[:, 0]
    slowed = fidelity.contended_timeline(problem, 1.25 * alone, placement)
    seconds = slowed.op_end - slowed.op_start
    assert (seconds >= alone - 1e-9).all()
    assert (seconds <= 1.25 * alone + 1e-9).all()
    same = fidelity.contended_timeline(problem, alone, placement)
    assert np.array_equal(same.op_start, start)
