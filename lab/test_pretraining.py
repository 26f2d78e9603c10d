"""The bundled policy on problems of the problem set: a search, and the table."""

from pathlib import Path

import pytest

from pretraining import __main__ as pretraining


def test_the_bundled_policy_is_evaluated_on_searched_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path)
    search = ["search", folder, "--split", "validation", "--limit", "1", "--evaluations", "40"]
    pretraining.main(search)
    assert len(capsys.readouterr().out.splitlines()) == 1
    pretraining.main(search)
    assert not capsys.readouterr().out  # the problem has a placement
    pretraining.main(["evaluate", folder, "--split", "validation"])
    _, _, row, *_ = capsys.readouterr().out.splitlines()
    greedy, sampled, refined, placed, *schedulers, _ = map(float, row.split("|")[5:12])
    assert min(greedy, sampled, refined, placed, *schedulers) >= 1.0  # of the best that is known
    assert greedy >= sampled >= refined
    assert placed <= min(schedulers)  # they are among its starts


def test_a_folder_without_placements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected placements of the test split, got none"):
        pretraining.main(["evaluate", str(tmp_path)])
