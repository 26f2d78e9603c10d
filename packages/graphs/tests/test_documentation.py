"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_graphs

PACKAGE = Path(placeto_graphs.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_graphs.")
]


@pytest.mark.parametrize("name", ["placeto_graphs", *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {export: getattr(placeto_graphs, export) for export in placeto_graphs.__all__}
    results = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS, extraglobs={"placeto_graphs": placeto_graphs} | names
    )
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_graphs, name) for name in placeto_graphs.__all__}
    del (
        exports["DEFAULT_RULES"],
        exports["DEVICE_KINDS"],
        exports["FREE_TYPE"],
        exports["LEVEL_SIZES"],
        exports["LINK_NAMES"],
        exports["NAMED_RULES"],
        exports["SECONDS_PER_BYTE"],
    )  # no functions, no types
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
