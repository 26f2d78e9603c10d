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
PROBLEM = two_chains()
# What examples of a package use without an import.
OF_COMMAND = {"np": np}
KNOWN: dict[str, dict[str, Any]] = {"placeto": OF_COMMAND, "placeto_tools": OF_COMMAND}
for package in (placeto_graphs, placeto_baselines):
    KNOWN[package.__name__] = {
        **{name: getattr(package, name) for name in package.__all__},
        package.__name__: package,
        "problem": PROBLEM,
        "evaluator": PlainEvaluator(PROBLEM),
    }
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", [*(package.__name__ for package in PACKAGES), *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = KNOWN.get(name.partition(".")[0])
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs=known).failed == 0
