import pytest

from placeto_tools.search_table import main


def test_each_problem_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    names = ["cifar10:3/2xk80", "cifar10:3/4xk80"]
    main([*names, "--evaluations=20", "--seconds=0.2", "--seeds=2"])
    printed = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in printed if line.startswith("| cifar10")]
    assert [row[0] for row in rows] == [f"{name}, 128 groups" for name in names]
    for row in rows:
        bound, found = float(row[1]), float(row[5].split()[0])
        assert bound <= found
        assert len(row) == len(printed[2].strip("| ").split(" | "))
    assert printed[-1].startswith("Gain on the mean: ")
