"""What the pages of the lab name still runs; ``PLACETO_TESTS=all`` runs these tests."""

from pathlib import Path

import fidelity
import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

import measured_curves
import model_check
import search_tables
from ledger import __main__ as ledger
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
from placeto_simulator import Simulator


def test_the_ledger_has_the_ratios_of_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    ledger.main(["--only", "GPT-J"])
    lines = capsys.readouterr().out.splitlines()
    table = (Path(ledger.__file__).parent / "results.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "---" not in line]
    assert len(rows) > 2
    assert set(rows) <= set(table)


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


def test_learning_on_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curves.png"
    measured_curves.main(["nmt-2", "--scale", "smoke", "--picture", str(picture)])
    assert "| Two device processes |" in capsys.readouterr().out
    assert picture.stat().st_size


def test_steps_that_are_simulated_and_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"PROFILE_RUNS": 2, "SEARCHES": ("expert",), "NUM_RANDOM": 1, "NUM_NEIGHBOURS": 1}
    for name, value in few.items():
        monkeypatch.setattr(fidelity, name, value)
    fidelity.main(["--smoke", "--runs", "1"])
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
