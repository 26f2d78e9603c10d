"""The tables of bounds and searches: each number is there, and they agree with one another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from placeto_experiments.tables import GROUPS_TO_TRY_ALL, main


@pytest.fixture(scope="module", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PLACETO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_row_has_the_parts_of_the_bound_and_what_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["bounds", "cifar10:3/2xk80", "--seconds=0.2", "--seeds=1"])
    printed = capsys.readouterr().out.splitlines()
    (cells,) = (line.strip("| ").split(" | ") for line in printed if line.startswith("| cifar10"))
    found = dict(zip(printed[2].strip("| ").split(" | "), cells, strict=True))
    parts = [float(found[part]) for part in ("path", "work", "split")]
    parts.append(float(cells[4]))  # the last part of the bound
    best = float(found["best known"])
    assert max(parts) <= best
    assert float(found["over the bound"].rstrip("%")) / 100 == pytest.approx(
        best / max(parts) - 1, abs=0.01
    )


def test_in_few_groups_all_placements_are_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GROUPS_TO_TRY_ALL, "2xk80", 6)
    main(["bounds", "cifar10:3/2xk80", "--exact"])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:2] == ["cifar10:3/2xk80", "6"]
    assert 0 < float(row[2]) <= float(row[3])
    assert row[5] == "0.0%"  # of so few placements the search tries all, too


def test_each_problem_has_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["cifar10:3/2xk80", "cifar10:3/4xk80"]
    main(["search", *names, "--evaluations=20", "--seconds=0.2", "--seeds=2"])
    printed = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in printed if line.startswith("| cifar10")]
    assert [row[0] for row in rows] == [f"{name}, 128 groups" for name in names]
    for row in rows:
        bound, found = float(row[1]), float(row[5].split()[0])
        assert bound <= found
        assert len(row) == len(printed[2].strip("| ").split(" | "))
    assert printed[-1].startswith("Gain on average: ")


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
    main(["search", f"{path}/2xv100", "--evaluations=20", "--seconds=0.1", "--seeds=1"])
    printed = capsys.readouterr().out
    assert f"\n| {path}/2xv100, " in printed
    (row,) = (line.split(" | ") for line in printed.splitlines() if line.startswith(f"| {path}"))
    assert 0 < float(row[1]) <= float(row[5])


def test_a_policy_stands_beside_search_alone_at_two_levels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(
        [
            "policy-search",
            "cifar10:3/2xk80",
            "--seconds",
            "0.2",
            "0.4",
            "--reference=0.5",
            "--seeds=1",
        ]
    )
    table, summary = capsys.readouterr().out.strip().split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [row[1] for row in rows] == ["none", "bundled"] * 2
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
