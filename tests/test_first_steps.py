"""The first steps of the README, as they stand there."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from command_runs import succeed
from placeto_graphs import load_problem

SHORTER = {"10": "0.2", "5": "1"}  # seconds of a search, updates of a training
SECTION = Path("README.md").read_text().split("## First steps")[1].split("\n## ")[0]


def test_the_first_steps_with_a_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, shell, python = re.findall(r"```(?:python)?\n(.*?)```", SECTION, re.DOTALL)
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lines = [shlex.split(line) for line in shell.splitlines()]
    assert len(lines) == 9
    for program, *arguments in lines:
        assert program == "placeto"
        succeed(*(SHORTER.get(argument, argument) for argument in arguments))
    assert load_problem("problem.json.gz").cluster.device_names == ("v100:0", "v100:1")
    written = {"placement.json", "learned.json", "trace.json", "timeline.png", "run"}
    assert written <= {path.name for path in tmp_path.iterdir()}
    # Read in the folder again, as other tests may have made a module of this name.
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    exec(compile(python.replace("seconds=10", "seconds=0.2"), "README.md", "exec"), {})  # noqa: S102
