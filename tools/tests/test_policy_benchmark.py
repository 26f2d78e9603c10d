from pathlib import Path

import pytest

from placeto_graphs import save_problem
from placeto_tools.benchmarks import policy_benchmark


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def test_the_benchmark_prints_a_row_for_every_problem(
    tmp_path: Path,
) -> None:
    path = tmp_path / "problem.json"
    save_problem(policy_benchmark.inception_problem(8, 2, batch_size=2, image_size=96), path)
    lines = policy_benchmark.measured([str(path), "--updates", "1"]).markdown().splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:5]] == [
        "ops",
        "groups",
        "devices",
        "training steps/s",
    ]
    assert [cell.strip() for cell in lines[4].split("|")[2:4]] == ["8", "2"]
    assert "simulator" in lines[2]
