"""Checks that docstrings describe each parameter of what a package exports, and say what raises.

Begin to read at `findings`. ``./pants lint ::`` checks all packages, and so does
``python pants-plugins/repository/reference.py``.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Union

MODULES = "packages/*/src/**/*.py"
EXPORTS = "packages/*/src/*/__init__.py"  # whose ``__all__`` has the exported names
MODULE = re.compile(r"(packages/[^/]+/src/[^/]+)/.+\.py")
# A line with parameters in a section of a docstring, without a description that is indented below.
BARE_ENTRY = re.compile(r"^\w+(, \w+)*( : .*)?$(?!\n +\S)", re.MULTILINE)


def findings(files: dict[str, bytes]) -> list[str]:
    """Return a line for each parameter without a description, and each unannounced error."""
    trees = {name: ast.parse(content) for name, content in files.items()}
    lines = []
    for name, tree in sorted(trees.items()):
        folder = MODULE.fullmatch(name)[1]
        exported = _exported(trees[f"{folder}/__init__.py"])
        for node in tree.body:
            if getattr(node, "name", None) in exported:
                lines += [f"{name}:{line}" for line in _findings_of(node)]
    return lines


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return ast.literal_eval(node.value)
    return []


def _findings_of(node: Union[ast.FunctionDef, ast.ClassDef]) -> Iterator[str]:
    docstring = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        yield from _findings_of_function(node, node.name, docstring)
        return
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        if method.name == "__init__" or not method.name.startswith("_"):
            docstrings = f"{docstring}\n{ast.get_docstring(method) or ''}"
            yield from _findings_of_function(method, f"{node.name}.{method.name}", docstrings)


def _findings_of_function(function: ast.FunctionDef, name: str, docstring: str) -> Iterator[str]:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg not in ("self", "cls") and not _is_described(argument.arg, docstring):
            yield f"{function.lineno}: {name}: no docstring describes {argument.arg}"
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(function))
    if raises and not re.search("Raises|Error", docstring):
        yield f"{function.lineno}: {name}: raises an error that no docstring names"


def _is_described(parameter: str, docstring: str) -> bool:
    descriptions = BARE_ENTRY.sub("", docstring)
    return re.search(rf"\b{parameter}\b", descriptions) is not None


if __name__ == "__main__":
    lines = findings({str(path): path.read_bytes() for path in sorted(Path().glob(MODULES))})
    if lines:
        sys.exit("\n".join(lines))
