"""The tutorial, the guides and the first command of the README print what they show."""

import json
import re
import sys
from pathlib import Path

import pytest

from command_runs import blocks, print_as_shown, write_tables

TUTORIAL = Path("docs/tutorial.md").resolve()
GUIDES = ("README.md", "docs/placing.md", "docs/serving.md", "docs/training-large.md")


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    page = Path(name).resolve()
    monkeypatch.chdir(tmp_path)
    write_tables(page)
    assert print_as_shown(page) >= 2


def test_the_tutorial_does_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module, block in zip(("my_model", "my_placer"), blocks(TUTORIAL, "python"), strict=True):
        Path(f"{module}.py").write_text(block)
        monkeypatch.delitem(sys.modules, module, raising=False)  # other tests may have made it
    assert print_as_shown(TUTORIAL) == 5
    (shown_map,) = re.findall(r"`device_map.json` maps .+?: `(.+?)`", TUTORIAL.read_text())
    assert json.loads(Path("device_map.json").read_text()) == json.loads(shown_map)
