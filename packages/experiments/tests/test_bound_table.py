"""The table of bounds has each part, and no placement under them."""

import pytest

from placeto_experiments.tables.bound_table import COLUMNS, GROUPS_TO_TRY_ALL, main


def test_a_row_has_the_parts_of_the_bound_and_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    main(["cifar10:3/2xk80", "--seconds=0.2", "--seeds=1"])
    printed = capsys.readouterr().out.splitlines()
    (cells,) = (line.strip("| ").split(" | ") for line in printed if line.startswith("| cifar10"))
    found = dict(zip(COLUMNS, cells, strict=True))
    parts = [float(found[part]) for part in ("path", "work", "split", "crowding")]
    best = float(found["best known"])
    assert max(parts) <= best
    assert float(found["over the bound"].rstrip("%")) / 100 == pytest.approx(
        best / max(parts) - 1, abs=0.01
    )


def test_in_few_groups_all_placements_are_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(GROUPS_TO_TRY_ALL, "2xk80", 6)
    main(["cifar10:3/2xk80", "--exact"])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:2] == ["cifar10:3/2xk80", "6"]
    assert 0 < float(row[2]) <= float(row[3])
    assert row[5] == "0.0%"  # of so few placements the search tries all, too
