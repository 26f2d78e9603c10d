import pytest

from placeto_tools.benchmarks.baselines_table import measured


def test_every_scheme_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = measured(["--evaluations", "10", "--groups", "6", "--ops", "60"])
    printed = capsys.readouterr()
    profile, generated = report.markdown().split("\n\n| scheme")[1:]
    expected = (
        "single cpu random expert scotch metis rnn heft m-topo m-etf m-sct critical-path "
        "local-search"
    )
    for name in expected.split():
        assert f"| `{name}` |" in generated
        assert (f"| `{name}` |" in profile) == (name != "cpu")
    assert "cluster: expected a device of the kind 'cpu', got 'v100'" in printed.err
    # No scheme is below the bound.
    rows = [line.split("|") for line in generated.splitlines() if line.startswith("| `")]
    assert all(float(row[3]) >= 1 for row in rows)
    assert len(rows) == len(expected.split()) + len(["the mean", "another learning rate"])
