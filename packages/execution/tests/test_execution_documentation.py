"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_execution

PACKAGE = Path(placeto_execution.__file__).parent
MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_execution.")
    if module.name != "placeto_execution.executor"  # runs in tests/, as it captures a model
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_execution, name) for name in placeto_execution.__all__}
    del exports["ExecutedStep"]  # an Executor's example makes one
    del exports["compile_step"]  # the example of a StepProgram calls it
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
