"""Every example in the package runs."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import placeto_graphs
import placeto_tools
from placeto_tools.reports import levels

MODULES = [
    module.name
    for module in pkgutil.walk_packages(placeto_tools.__path__, "placeto_tools.")
    if not module.name.endswith((".main", ".placed_module"))
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    known = {"np": np, "GroupGraph": placeto_graphs.GroupGraph}
    assert doctest.testmod(module, extraglobs=known).failed == 0


def test_there_are_examples() -> None:
    assert doctest.testmod(levels).attempted > 0
