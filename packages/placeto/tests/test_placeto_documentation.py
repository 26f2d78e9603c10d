"""Every example in the package runs."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import placeto
from placeto import texts

MODULES = [module.name for module in pkgutil.walk_packages(placeto.__path__, "placeto.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    known = {"np": np}
    assert doctest.testmod(importlib.import_module(name), extraglobs=known).failed == 0


def test_there_are_examples() -> None:
    assert doctest.testmod(texts).attempted > 0
