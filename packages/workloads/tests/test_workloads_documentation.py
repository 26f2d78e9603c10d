"""Every example in a docstring runs and prints what stands there."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import placeto_workloads

PACKAGE = Path(placeto_workloads.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="placeto_workloads.")
]


@pytest.mark.parametrize("name", ["placeto_workloads", *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_every_export_shows_an_example() -> None:
    exports = {name: getattr(placeto_workloads, name) for name in placeto_workloads.__all__}
    for data in ("LIBRARIES", "MODELS", "NASNET_A"):
        del exports[data]
    assert [name for name, export in exports.items() if ">>>" not in export.__doc__] == []
