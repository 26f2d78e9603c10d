"""The page on placers of one's own: its file, its commands and its tests."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from command_runs import blocks, profile, succeed, succeed_json

PAGE = Path("docs/write-a-placer.md").resolve()
EXAMPLE = Path("packages/graphs/examples/coordinate_descent").resolve()
NAME = "coordinate_descent"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder, beside a model of a small size in place of nmt-2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in (NAME, f"test_{NAME}"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    Path("nmt-2.txt").write_text(profile(12))
    return tmp_path


def commands() -> list[list[str]]:
    """Return the arguments of the page's commands, on a small graph."""
    lines = "".join([*blocks(PAGE), *blocks(PAGE, "sh")]).splitlines()
    texts = (re.sub(r"inception-v3 nmt-2|nmt-2", "nmt-2.txt", line) for line in lines)
    return [shlex.split(text)[1:] for text in texts]


@pytest.mark.usefixtures("folder")
def test_from_an_empty_file_to_a_row_in_the_table() -> None:
    placer, suite, evaluator = blocks(PAGE, "python")
    file, tests = ((EXAMPLE / f"{name}.py").read_text() for name in (NAME, f"test_{NAME}"))
    assert placer in file
    assert evaluator in file
    assert suite.partition("class ")[2] in tests
    assert blocks(PAGE, "toml")[0] in (EXAMPLE / "pyproject.toml").read_text()
    Path(f"{NAME}.py").write_text(f"{placer}\n\n{evaluator}")
    first, second, _ = commands()
    (problem,) = succeed_json(*first, "--seeds=2", "--seconds=0.2")["problems"]
    found = {one["name"]: one["runs"] for one in problem["placers"]}
    own = found[f"{NAME}:CoordinateDescent"]
    assert len(own) == 2
    assert all(run["runtime"] >= problem["lower_bound"] for run in own)
    table = succeed(*second, "--max-evaluations=100")
    assert "largest load" in table
    assert f"\n{NAME}:CoordinateDescent " in table
    Path(f"test_{NAME}.py").write_text(suite)
    cases = importlib.import_module(f"test_{NAME}").TestCoordinateDescent()
    names = [name for name in dir(cases) if name.startswith("test_")]
    for name in names:
        getattr(cases, name)()
    assert len(names) >= 4
