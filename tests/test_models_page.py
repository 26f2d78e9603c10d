"""The page of models is what ``placeto models --check`` prints."""

import re
from pathlib import Path

from placeto_tools.problems.checked_models import CHECKED_MODELS
from placeto_tools.problems.model_table import COLUMNS

PAGE = Path("docs/models.md")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\) \| ", line.strip("| ") + " ") for line in lines]


def test_each_model_has_its_row() -> None:
    head, _, *models = rows()
    assert head[0].strip() == "model"
    assert [column.strip() for column in head] == [name.strip(">") for name in COLUMNS]
    assert [row[0].strip() for row in models] == [model.command for model in CHECKED_MODELS]
    assert len(models) >= 80


def test_the_page_says_how_many_succeeded() -> None:
    _, _, *models = rows()
    done = sum(
        row[-1].strip().rstrip("*").endswith("s") and len(row) == len(COLUMNS) for row in models
    )
    assert f"{done} of {len(models)} models" in PAGE.read_text()
    assert done >= 0.97 * len(models)
