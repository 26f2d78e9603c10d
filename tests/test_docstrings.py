"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placeto
import placeto_baselines
import placeto_capture
import placeto_execution
import placeto_experiments
import placeto_graphs
import placeto_policy
import placeto_simulator
import placeto_tools
import placeto_workloads
from baseline_problems import two_chains
from plain_evaluator import PlainEvaluator

PACKAGES = [
    *(placeto_graphs, placeto_simulator, placeto_baselines, placeto_policy, placeto_capture),
    *(placeto_workloads, placeto_execution, placeto, placeto_experiments, placeto_tools),
]
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


def known_names(module: str) -> dict[str, Any]:
    """Return what examples of a module use without an import."""
    package = module.partition(".")[0]
    if package in {"placeto_graphs", "placeto_baselines"}:
        of_package = importlib.import_module(package)
        names = {name: getattr(of_package, name) for name in of_package.__all__}
        problem = two_chains()
        return {
            **names,
            package: of_package,
            "problem": problem,
            "evaluator": PlainEvaluator(problem),
        }
    if package in {"placeto", "placeto_tools"}:
        return {"np": np, "GroupGraph": placeto_graphs.GroupGraph}
    return {}


@pytest.mark.parametrize("name", [*(package.__name__ for package in PACKAGES), *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs=known_names(name))
    assert found.failed == 0
