"""Every example in a docstring runs and prints what stands there."""

import doctest

import pytest

import placeto_workloads
from placeto_workloads import errors
from placeto_workloads.costs import backward_convolutions
from placeto_workloads.costs import kinds
from placeto_workloads.costs import memory
from placeto_workloads.costs import op_classes
from placeto_workloads.costs import roofline


@pytest.mark.parametrize(
    "module", [backward_convolutions, errors, kinds, memory, op_classes, roofline]
)
def test_examples_in_docstrings(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {
        name: getattr(placeto_workloads, name)
        for name in placeto_workloads.__all__
        if callable(getattr(placeto_workloads, name))
    }
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
