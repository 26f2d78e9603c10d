"""The folders that experiments leave, at their smallest, read and checked."""

import json
from pathlib import Path
from typing import Any

from command_runs import check_picture
from placeto.trials.folder import TRIALS
from placeto_graphs import load_problem
from placeto_policy import PlacementPolicy, load_policy

SMOKE = "--scale=smoke"


def trials_of(folder: Path, *, clocks: bool = False) -> dict[str, dict[str, Any]]:
    """Return the trials by name, without what a clock said."""
    trials = {}
    for line in (folder / TRIALS).read_text().splitlines():
        record = json.loads(line)
        if not clocks:
            record.pop("seconds", None)
            record.pop("took", None)
        trials[record.pop("name")] = record
    return trials


def policy_of(folder: Path, name: str) -> PlacementPolicy:
    """Return the policy of a name, behind which its file has a key."""
    (path,) = (folder / "policies").glob(f"{name}-????????????????.safetensors")
    return load_policy(path)


def check_complete(folder: Path, pictures: int, wide: str = "") -> str:
    """Check that a folder has all that an experiment leaves; return its page."""
    description = json.loads((folder / "experiment.json").read_text())
    trials = trials_of(folder, clocks=True)
    assert len(trials) == description["trials"]
    for record in trials.values():
        assert record.get("cost") is None or record["cost"] > 0
        assert len(record.get("curve", [])) <= 200
    page = (folder / "results.md").read_text()
    drawn = sorted(path.name for path in folder.glob("*.png"))
    assert len(drawn) == pictures
    for name in drawn:
        assert f"]({name})" in page
        check_picture(folder / name, 1300 if name == wide else 900)
    assert not any("nan" in line for line in page.splitlines() if line.startswith("|"))
    for problem in (folder / "problems").iterdir():
        assert load_problem(problem).num_groups <= 12
    return page


def cell(page: str, row: str, column: int) -> str:
    """Return a cell of the first row that begins so."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return line.split(" | ")[column].strip(" |")
