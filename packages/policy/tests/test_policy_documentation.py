"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import placeto_policy

MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(placeto_policy.__path__, "placeto_policy.")
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module).failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_policy, name) for name in placeto_policy.__all__}
    assert [name for name, export in exports.items() if "Examples\n" not in export.__doc__] == []
