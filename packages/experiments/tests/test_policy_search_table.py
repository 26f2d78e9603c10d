import pytest

from placeto_experiments.tables.policy_search_table import main


def test_a_policy_stands_beside_search_alone_at_two_levels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    main(["cifar10:3/2xk80", "--seconds", "0.2", "0.4", "--reference=0.5", "--seeds=1"])
    table, summary = capsys.readouterr().out.strip().split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [row[1] for row in rows] == ["none", "in the box"] * 2
    assert rows[0][0].startswith("cifar10:3/2xk80, 128 groups")
    assert rows[0][0] != rows[2][0]
    for row in rows:
        best_known = float(row[-1])
        assert all(best_known <= float(cost) for cost in row[3:5])
    for alone, behind in zip(rows[::2], rows[1::2], strict=True):
        assert alone[-1] == behind[-1]
        # A search is never worse than where the policy lets it begin.
        assert max(float(behind[3]), float(behind[4])) <= float(behind[2])
    assert summary.splitlines()[2].startswith("| cifar10 | none |")
