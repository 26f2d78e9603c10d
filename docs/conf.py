"""How Sphinx makes a site of these pages, the READMEs and the docstrings of every package.

The sources are the repository as it lies, so that links between pages are the same in both.
"""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.nodes import make_refnode

project = "Placeto"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/contents"  # what it lists is the site's order
include_patterns = ["README.md", "docs/**", "lab/**", "packages/*/README.md", "tools/README.md"]
exclude_patterns = [".git", "dist", "**/__pycache__"]
templates_path = ["site"]

html_theme = "alabaster"
html_theme_options = {"sidebar_includehidden": False}
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what each parameter is
napoleon_google_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"
nitpicky = True
# Types are words, such as "int32 [G]". What other libraries have is looked up nowhere.
nitpick_ignore_regex = [("py:(class|exc)", ".*"), ("py:obj", r"(torch|torchrun)(\..*)?")]

ROOT = Path(__file__).parent.parent
SOURCES = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("tools/src/**/*.py")]
PACKAGES = ["placeto_tools", *sorted(path.name for path in ROOT.glob("packages/*/src/placeto_*"))]
DEFINED = {path.stem for path in SOURCES}.union(
    *(re.findall(r"^\s*(?:def |class )?(\w+)\b *[:=(]", path.read_text(), re.M) for path in SOURCES)
)  # every name that the packages define somewhere, and their modules


def setup(app: Sphinx) -> None:
    """Add what this file knows of the packages to what Sphinx does."""
    app.connect("autodoc-process-docstring", _describe_constant)
    app.connect("missing-reference", _resolve_elsewhere)


def _describe_constant(
    _app: Sphinx, what: str, name: str, _member: object, _options: Any, lines: list[str]
) -> None:
    """Take the words below a constant from the module that it is imported from."""
    if what == "data":
        package, _, constant = name.rpartition(".")
        described = ModuleAnalyzer.for_module(_imported_from(package, constant)).find_attr_docs()
        lines[:] = described.get(("", constant), [])


def _imported_from(package: str, name: str) -> str:
    source = Path(str(importlib.import_module(package).__file__)).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return str(node.module)
    return package


def _resolve_elsewhere(
    app: Sphinx, env: BuildEnvironment, reference: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Link what another package exports; let stand what is internal, if it is there at all."""
    name = str(reference["reftarget"]).rpartition(".")[2]
    for package in PACKAGES:
        known = env.domains.python_domain.objects.get(f"{package}.{name}")
        if known is not None:
            page = str(reference["refdoc"])
            return make_refnode(app.builder, page, known.docname, known.node_id, text, name)
    return text if reference["reftype"] == "obj" and name in DEFINED else None
