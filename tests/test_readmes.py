"""The Python of READMEs and pages runs, and tables of commands name those that there are."""

import re
from pathlib import Path

import click
import pytest

import experiment_plugin  # noqa: F401
from placeto_experiments.command import experiment
from placeto_tools.main import placeto

# test_first_steps.py, test_gymnasium_page.py and test_placer_page.py run them, or the training of
# an agent, and look what comes of it.
APART = {Path("docs/tutorial.md"), Path("docs/write-a-placer.md")}
PAGES = [
    Path("README.md"),
    *sorted(Path("packages").glob("*/README.md")),
    Path("tools/README.md"),
    *sorted({*Path("docs").rglob("*.md")} - APART),
]
BLOCKS = {
    f"{path}, block {number}": block
    for path in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    if "sb3_contrib" not in block
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_lines_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shorter = BLOCKS[name].replace("seconds=1", "seconds=0.1")
    exec(compile(shorter, name, "exec"), {})  # noqa: S102


def test_the_packages_that_can_be_used_show_how() -> None:
    shown = {name.split("/README")[0] for name in BLOCKS if "/README" in name}
    packages = {str(path.parent) for path in Path("packages").glob("*/pyproject.toml")}
    assert packages - shown == set()


def first_column(page: str, head: str) -> list[str]:
    """Return the first words in code of the rows of the table of a page with this head."""
    table = Path(page).read_text().split(f"\n| {head} |")[1].split("\n\n")[0]
    return re.findall(r"^\| `(?:placeto )?([a-z0-9-]+)", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "head", "group"),
    [
        ("tools/README.md", "command", placeto),
        ("packages/experiments/README.md", "`placeto experiment`", experiment),
    ],
)
def test_the_tables_of_commands_have_each_of_them_once(
    page: str, head: str, group: click.Group
) -> None:
    assert sorted(first_column(page, head)) == sorted(group.list_commands(click.Context(group)))
