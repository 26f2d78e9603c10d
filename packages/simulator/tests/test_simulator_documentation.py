"""Every example in a docstring runs and prints what stands there."""

import doctest

import pytest

import placeto_simulator
from placeto_simulator import errors, reference, simulator, timeline


@pytest.mark.parametrize("module", [errors, reference, simulator, timeline])
def test_examples_in_docstrings(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_simulator, name) for name in placeto_simulator.__all__}
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
