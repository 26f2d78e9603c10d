"""`import placeto` is quick, and nothing in the package needs a screen."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import placeto

FOR_A_SCREEN = {"bokeh", "click", "matplotlib", "placeto_experiments", "placeto_tools", "rich"}


def test_no_module_imports_what_a_screen_needs() -> None:
    modules = list(Path(placeto.__path__[0]).rglob("*.py"))
    assert modules
    for path in modules:
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
        assert not found & FOR_A_SCREEN, path


def test_the_package_is_imported_at_once_and_without_pytorch() -> None:
    check = (
        "import sys, time; began = time.process_time(); import placeto; "
        "print('torch' in sys.modules, time.process_time() - began); placeto.place"
    )
    command = [sys.executable, "-c", check]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert printed[0] == "False"
    assert float(printed[1]) < 0.3


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plaice'"):
        _ = placeto.plaice
    assert set(placeto.__all__) == {name for name in placeto.__all__ if hasattr(placeto, name)}
