"""The tables of bounds and searches: each number is there, and they agree with one another."""

from pathlib import Path

import pytest

from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto_experiments import tables
from placeto_experiments.tables import GROUPS_TO_TRY_ALL, main
from placeto_graphs import PlacementProblem

PROBLEM = "family:3/2xv100"  # as a graph of a family is named; it is read from a file


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a profile, and let it be what each table reads."""
    lines = [
        f"node{number} -- Linear({number}) -- forward_compute_time=1, backward_compute_time=2, "
        "activation_size=1000, parameter_size=1000"
        for number in range(150)
    ]
    lines += [f"\tnode{number // 2} -- node{number}" for number in range(1, 150)]
    path = tmp_path / "graph.txt"
    path.write_text("\n".join(lines))

    def read(source: str, options: ProblemOptions) -> PlacementProblem:
        assert source in {"family:3", str(path)}
        return read_problem(str(path), options)

    monkeypatch.setattr(tables, "read_problem", read)
    monkeypatch.setitem(GROUPS_TO_TRY_ALL, "2xv100", 6)
    return path


def test_a_row_has_the_parts_of_the_bound_and_what_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["bounds", PROBLEM, "--seconds=0.2", "--seeds=1"])
    printed = capsys.readouterr().out.splitlines()
    (cells,) = (line.strip("| ").split(" | ") for line in printed if line.startswith("| family"))
    found = dict(zip(printed[2].strip("| ").split(" | "), cells, strict=True))
    parts = [float(found[part]) for part in ("path", "work", "split")]
    parts.append(float(cells[4]))  # the last part of the bound
    best = float(found["best known"])
    assert max(parts) <= best
    assert float(found["over the bound"].rstrip("%")) / 100 == pytest.approx(
        best / max(parts) - 1, abs=0.01
    )


def test_in_few_groups_all_placements_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bounds", PROBLEM, "--exact"])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:2] == [PROBLEM, "6"]
    assert 0 < float(row[2]) <= float(row[3])
    assert row[5] == "0.0%"  # of so few placements the search tries all, too


def test_each_problem_has_a_row(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    names = [PROBLEM, f"{profile}/4xv100"]
    main(["search", *names, "--evaluations=20", "--seconds=0.2", "--seeds=2"])
    printed = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in printed if "/2xv" in line or "/4xv" in line]
    assert [row[0] for row in rows] == [f"{name}, 128 groups" for name in names]
    for row in rows:
        bound, found = float(row[1]), float(row[5].split()[0])
        assert 0 < bound <= found
        assert len(row) == len(printed[2].strip("| ").split(" | "))
    assert printed[-1].startswith("Gain on average: ")
