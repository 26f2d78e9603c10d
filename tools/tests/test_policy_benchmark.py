from pathlib import Path

import pytest

from placeto_graphs import save_problem
from placeto_tools import policy_benchmark


def test_the_branched_graph_is_a_training_graph_of_about_3000_ops() -> None:
    problem = policy_benchmark.branched_problem(num_groups=128, num_devices=2)
    assert 2_800 < problem.graph.num_ops < 3_200
    assert problem.num_groups == 128
    assert (problem.graph.phases == 1).sum() * 2 == problem.graph.num_ops


def test_the_benchmark_prints_a_row_for_every_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "problem.json"
    save_problem(policy_benchmark.branched_problem(num_groups=8, num_devices=2), path)
    policy_benchmark.main([str(path), "--updates", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:5]] == [
        "ops",
        "groups",
        "devices",
        "training steps/s",
    ]
    assert [cell.strip() for cell in lines[4].split("|")[2:4]] == ["8", "2"]
    assert "simulator" in lines[2]
