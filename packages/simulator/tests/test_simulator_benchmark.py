import pytest

from placeto_simulator import benchmark


def test_the_benchmark_prints_a_row_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--ops", "100", "200", "--devices", "2", "--repeats", "1"])
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines()[4:]]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["100", "2", "random"],
        ["100", "2", "contiguous"],
        ["200", "2", "random"],
        ["200", "2", "contiguous"],
    ]
