import pytest

from placeto_tools.benchmarks import pipelines


def test_a_row_for_every_number_of_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "STAGES", (2, 3))
    monkeypatch.setattr(pipelines, "MICRO_BATCHES", (1, 4))
    pipelines.main(["--ops-per-layer", "1", "2"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("| 2 ", "| 3 "))]
    assert len(rows) == 2 * 2 * 2 * 2 * 2
    fifo, backward_first = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert all("| 0.0% | 0.0% |" in row for row in fifo[: len(fifo) // 2])  # one op in a layer
    assert all("| 0.0% |" not in row.partition("| 0.0% ")[2] for row in fifo[len(fifo) // 2 :])
    assert all("| 0.0% | 0.0% |" in row for row in backward_first)
    assert "| stages | m = 1 | m = 4 |" in lines
