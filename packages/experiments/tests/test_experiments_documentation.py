"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_experiments

PACKAGE = Path(placeto_experiments.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_experiments.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
