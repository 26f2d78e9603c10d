"""The tutorial from an empty folder to a device map, and what its commands print; the README."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from command_runs import succeed
from placeto.placing.placers import PLACERS

README, TUTORIAL = (Path(page).read_text() for page in ("README.md", "docs/tutorial.md"))
FILES = ("my_model.py", "my_placer.py")
# What another run prints otherwise: seconds at the end of a line.
SECONDS = re.compile(r" \d+\.\d+( s)?$")


def consoles(page: str) -> list[tuple[list[str], list[str]]]:
    """Return the arguments of each command of a page, and the lines that it prints there."""
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    runs = [run.splitlines() for block in blocks for run in f"\n{block}".split("\n$ ")[1:]]
    return [
        (shlex.split(command), [line for line in shown if line != "..."])
        for command, *shown in runs
    ]


def comparable(lines: list[str]) -> list[str]:
    """Return lines without spaces between columns, and without seconds."""
    return [SECONDS.sub(" SECONDS", " ".join(line.split())) for line in lines]


def test_the_tutorial_does_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file, block in zip(FILES, re.findall(r"```python\n(.*?)```", TUTORIAL, re.S), strict=True):
        Path(file).write_text(block)
        # Other tests may have made a module of this name.
        monkeypatch.delitem(sys.modules, file.removesuffix(".py"), raising=False)
    runs = consoles(TUTORIAL)
    assert len(runs) == 5
    for (program, *arguments), shown in runs:
        assert program == "placeto"
        assert shown
        printed = comparable(succeed(*arguments).splitlines())
        assert [line for line in comparable(shown) if line not in printed] == []
    (shown_map,) = re.findall(r"`device_map.json` is `(.+?)`", TUTORIAL)
    assert json.loads(Path("device_map.json").read_text()) == json.loads(shown_map)


def test_the_readme_shows_rows_of_a_comparison_that_agree() -> None:
    (comparison, (head, *rows)), _ = consoles(README)
    assert comparison[3:5] == ["--", "compare"]
    assert head.split() in [line.split() for _, shown in consoles(TUTORIAL) for line in shown]
    cells = [re.split(r" {2,}", row) for row in rows]
    titles, runtimes, of_best, of_bound = zip(*(row[:4] for row in cells), strict=True)
    assert titles[-1] == "lower bound"
    assert {*titles[:-1]} <= {spec.title for spec in PLACERS.values()}
    *seconds, bound = (float(runtime.removesuffix(" s")) for runtime in runtimes)
    ratios = [runtime / min(seconds) for runtime in (*seconds, bound)]
    assert [*map(float, of_best)] == pytest.approx(ratios, abs=2e-3)
    assert [*map(float, of_bound)] == pytest.approx([*(s / bound for s in seconds), 1], abs=0.01)
