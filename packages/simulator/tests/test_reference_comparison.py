import pytest
import reference_comparison


def test_the_comparison_prints_a_row_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    reference_comparison.main(["--ops", "300", "--repeats", "1"])
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines()[2:]]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[0] for row in cells] == ["layered", "layered", "PipeDream", "PipeDream"]
    assert [row[2] for row in cells] == ["random", "contiguous"] * 2
