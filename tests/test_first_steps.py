"""The tutorial from an empty folder to a device map, and what its commands print."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from command_runs import blocks, succeed

TUTORIAL = Path("docs/tutorial.md").resolve()
# What another run prints otherwise: seconds at the end of a line.
SECONDS = re.compile(r" \d+\.\d+( s)?$")


def comparable(lines: list[str]) -> list[str]:
    """Return lines without spaces between columns, and without seconds."""
    return [SECONDS.sub(" SECONDS", " ".join(line.split())) for line in lines]


def test_the_tutorial_does_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module, block in zip(("my_model", "my_placer"), blocks(TUTORIAL, "python"), strict=True):
        Path(f"{module}.py").write_text(block)
        monkeypatch.delitem(sys.modules, module, raising=False)  # other tests may have made it
    runs = [run for block in blocks(TUTORIAL, "console") for run in f"\n{block}".split("\n$ ")[1:]]
    assert len(runs) == 5
    for command, *shown in map(str.splitlines, runs):
        program, *arguments = shlex.split(command)
        assert program == "placeto"
        assert shown
        printed = [*comparable(succeed(*arguments).splitlines()), "..."]
        assert [line for line in comparable(shown) if line not in printed] == []
    (shown_map,) = re.findall(r"`device_map.json` is `(.+?)`", TUTORIAL.read_text())
    assert json.loads(Path("device_map.json").read_text()) == json.loads(shown_map)
