import pytest

from placeto_simulator import Simulator
from placeto_simulator import benchmark


def test_the_benchmark_prints_a_row_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--ops", "300", "400", "--devices", "2", "--repeats", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines]
    assert [row for row in cells if row[0] == "layered"] == [
        ["layered", "300", "2", "random"],
        ["layered", "300", "2", "contiguous"],
        ["layered", "400", "2", "random"],
        ["layered", "400", "2", "contiguous"],
        ["layered", "300", "2", cells[-4][3]],
        ["layered", "400", "2", cells[-2][3]],
    ]
    assert sum(row[0] == "PipeDream" for row in cells) == 6


def test_both_kinds_of_episode_end_at_the_same_placement() -> None:
    for _, problem in benchmark.problems(400, 3, 60, seed=1):
        simulator = Simulator(problem, num_threads=1)
        incremental = benchmark.incremental_episode(simulator)
        assert incremental == benchmark.one_by_one_episode(simulator)
