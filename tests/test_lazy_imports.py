"""Names that a package imports when they are first used, from the modules that define them."""

import ast
import importlib
import inspect
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import placeto
import placeto_capture
import placeto_workloads

LAZY_PACKAGES = [placeto, placeto_capture, placeto_workloads]


def names_for_type_checkers(package: ModuleType) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers alone."""
    statements = ast.parse(inspect.getsource(package)).body
    blocks = [
        statement
        for statement in statements
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: str(imports.module)
        for block in blocks
        for imports in block.body
        if isinstance(imports, ast.ImportFrom)
        for alias in imports.names
    }


def defined_names(module: str) -> set[str]:
    """Return the functions, classes and constants that a module defines, without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    names = set()
    for statement in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names.update(ast.unparse(target) for target in targets)
    return names


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_the_table_has_each_name_with_the_module_that_defines_it(package: ModuleType) -> None:
    table = {name: f"{package.__name__}.{module}" for name, module in package._MODULES.items()}
    assert table == names_for_type_checkers(package)
    assert all(name in defined_names(module) for name, module in table.items())
    eager = set(package.__all__) - set(table)
    assert set(table) <= set(package.__all__)
    assert eager <= set(vars(package))
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_the_use_of_a_name_imports_one_module(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []

    def import_module(module: str) -> ModuleType:
        imported.append(module)
        return importlib.import_module(module)

    monkeypatch.setattr(package, "import_module", import_module)
    for name, module in package._MODULES.items():
        imported.clear()
        value = getattr(package, name)
        assert imported == [f"{package.__name__}.{module}"]
        assert value is getattr(importlib.import_module(imported[0]), name)
    with pytest.raises(AttributeError, match=f"{package.__name__}.* has no attribute 'nothing'"):
        _ = package.nothing
