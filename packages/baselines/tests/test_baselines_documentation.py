"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_baselines
from baseline_problems import two_chains
from plain_evaluator import PlainEvaluator

PACKAGE = Path(placeto_baselines.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_baselines.")
]
PROBLEM = two_chains()


@pytest.mark.parametrize("name", ["placeto_baselines", *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {export: getattr(placeto_baselines, export) for export in placeto_baselines.__all__}
    names |= {"problem": PROBLEM, "evaluator": PlainEvaluator(PROBLEM)}
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS, extraglobs=names
    )
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_baselines, name) for name in placeto_baselines.__all__}
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
