import re

from placeto_simulator import benchmark


def test_the_benchmark_has_a_row_for_every_case() -> None:
    report = benchmark.measured(["--ops", "300", "400", "--devices", "2", "--repeats", "1"])
    printed = report.markdown()
    assert re.search(r"^import \d+\.\d\d s, first evaluation \d+\.\d\d s$", printed, re.MULTILINE)
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines]
    assert [row for row in cells if row[0] == "layered"] == [
        ["layered", "300", "2", "random"],
        ["layered", "300", "2", "contiguous"],
        ["layered", "400", "2", "random"],
        ["layered", "400", "2", "contiguous"],
    ]
    assert [row[3] for row in cells if row[0] == "PipeDream"] == ["random", "contiguous"] * 2
    for line in lines[2:]:
        assert all(float(number) > 0 for number in re.findall(r"(\d+\.\d+) (?:ms|times)", line))
