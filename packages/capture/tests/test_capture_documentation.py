"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_capture

PACKAGE = Path(placeto_capture.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_capture.")
]


@pytest.mark.parametrize("name", ["placeto_capture", *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_capture, name) for name in placeto_capture.__all__}
    for data in ("Target", "Updates"):
        del exports[data]
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
