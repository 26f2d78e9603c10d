"""The Python of READMEs and pages runs, and tables of commands name those that there are."""

import re
from pathlib import Path

import click
import pytest

import experiment_plugin  # noqa: F401
from command_runs import blocks
from placeto_experiments.command import experiment
from placeto_tools.main import placeto

# Tests of their own run them, and look what comes of it.
APART = {Path("docs/tutorial.md"), Path("docs/write-a-placer.md")}
PACKAGES = [*sorted(Path("packages").glob("*/README.md")), Path("tools/README.md")]
PAGES = [Path("README.md"), *PACKAGES, *sorted({*Path("docs").rglob("*.md")} - APART)]
BLOCKS = {
    f"{path}, block {number}": block
    for path in PAGES
    for number, block in enumerate(blocks(path, "python"))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_lines_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shorter = BLOCKS[name].replace("seconds=1", "seconds=0.1")
    exec(compile(shorter, name, "exec"), {})  # noqa: S102


def test_the_packages_that_can_be_used_show_how() -> None:
    assert [page for page in PACKAGES[:-1] if f"{page}, block 0" not in BLOCKS] == []


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
    table = Path(page).read_text().split(f"\n| {head} |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(?:placeto )?([a-z0-9-]+)", table, re.MULTILINE)
    assert sorted(named) == sorted(group.list_commands(click.Context(group)))
