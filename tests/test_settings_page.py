"""docs/settings.md has every hyperparameter with the values that it has in the code."""

from dataclasses import asdict
from pathlib import Path

import pytest

from placeto_policy import Settings, preset

PAGE = Path("docs/settings.md").read_text()


def rows_of(heading: str) -> dict[str, list[str]]:
    """Return the cells behind each name of the tables of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows if row and row[0].startswith("`")}


@pytest.mark.parametrize(("column", "settings"), [(1, Settings()), (2, preset("paper"))])
def test_each_setting_has_its_value(column: int, settings: Settings) -> None:
    sections = ("Network", "Episodes and rewards", "Training")
    shown = {name: row[column] for each in sections for name, row in rows_of(each).items()}
    values = asdict(settings)
    assert shown.keys() == values.keys()
    for name, text in shown.items():
        assert type(values[name])(text) == values[name]


@pytest.mark.parametrize(("column", "name"), [(0, "general"), (1, "fine-tuning")])
def test_the_other_presets_differ_as_shown(column: int, name: str) -> None:
    shown = {field: row[column] for field, row in rows_of("Presets").items()}
    default, values = asdict(Settings()), asdict(preset(name))
    assert {field for field in values if values[field] != default[field]} <= shown.keys()
    for field, text in shown.items():
        assert type(values[field])(text) == values[field]
