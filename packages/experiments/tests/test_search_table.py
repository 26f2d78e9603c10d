from pathlib import Path

import pytest

from placeto_experiments.tables.search_table import main


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


def test_a_profile_has_a_row_by_its_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        f"node{number} -- Linear({number}) -- forward_compute_time=1, backward_compute_time=2, "
        "activation_size=1000, parameter_size=1000"
        for number in range(12)
    ]
    lines += [f"\tnode{number // 2} -- node{number}" for number in range(1, 12)]
    path = tmp_path / "graph.txt"
    path.write_text("\n".join(lines))
    main([f"{path}/2xv100", "--evaluations=20", "--seconds=0.1", "--seeds=1"])
    printed = capsys.readouterr().out
    assert f"\n| {path}/2xv100, " in printed
    (row,) = (line.split(" | ") for line in printed.splitlines() if line.startswith(f"| {path}"))
    assert 0 < float(row[1]) <= float(row[5])
