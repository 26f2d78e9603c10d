"""What pages and docstrings show runs: the tour, placers, agents, READMEs."""

import doctest
import importlib
import pkgutil
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import experiment_plugin  # noqa: F401
from baseline_problems import two_chains
from command_runs import blocks, environment, print_as_shown, profile, succeed
from placeto_experiments.command import experiment
from placeto_tools.main import placeto
from plain_evaluator import PlainEvaluator

PLACER = Path("docs/write-a-placer.md").resolve()
EXAMPLE = Path("packages/graphs/examples/coordinate_descent").resolve()
NAME = "coordinate_descent"
# Tests of their own run them, and look what comes of it.
APART = {Path("docs/tutorial.md").resolve(), PLACER}
PACKAGES = [*sorted(Path("packages").glob("*/README.md")), Path("tools/README.md")]
PAGES = [Path("README.md"), *PACKAGES, *sorted(Path("docs").rglob("*.md"))]
BLOCKS = {
    f"{path}, block {index}": block
    for path in PAGES
    if path.resolve() not in APART
    for index, block in enumerate(blocks(path, "python"))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_lines_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shorter = BLOCKS[name].replace("seconds=1", "seconds=0.1")
    exec(compile(shorter, name, "exec"), {})  # noqa: S102


def test_the_packages_that_can_be_used_show_how() -> None:
    assert [page for page in PACKAGES[:-1] if f"{page}, block 0" not in BLOCKS] == []


@pytest.mark.parametrize(
    ("page", "head", "group"),
    [
        ("tools/README.md", "command", placeto),
        ("packages/experiments/README.md", "`placeto experiment`", experiment),
    ],
)
def test_the_tables_of_commands_have_each_of_them_once(
    page: str, head: str, group: click.Group
) -> None:
    table = Path(page).read_text().split(f"\n| {head} |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(?:placeto )?([a-z0-9-]+)", table, re.MULTILINE)
    assert sorted(named) == sorted(group.list_commands(click.Context(group)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder, whose modules other tests have not imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in (NAME, f"test_{NAME}"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that run it
def test_the_tour_runs_and_its_outputs_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    notebook = nbformat.read("docs/tour.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    in_order = list(range(1, len(code) + 1))
    assert [cell.execution_count for cell in code] == in_order
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds <= {"stream", "execute_result"}
    for cell in code:
        cell.outputs, cell.execution_count = [], None
        cell.source = cell.source.replace("seconds=3", "seconds=0.3")
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment())
    assert [cell.execution_count for cell in code] == in_order
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)


def test_the_agent_of_the_page_places_better_than_chance_and_than_one_device() -> None:
    (block,) = blocks(Path("packages/policy/README.md"), "py")  # needs another library
    names: dict[str, Any] = {}
    exec(compile(block.replace("rounds=4", "rounds=2"), "README.md", "exec"), names)  # noqa: S102
    first, *_, last = names["curve"]
    # Untrained it chooses at random. The mean of ten placements is known to about 2 ms of 59.
    assert abs(first - names["at_random"]) < 0.15 * names["at_random"]
    assert last < 0.92 * min(names["at_random"], names["on_one_device"])


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_from_an_empty_file_to_a_row_in_the_table() -> None:
    placer, suite, evaluator = blocks(PLACER, "python")
    file, tests = ((EXAMPLE / f"{name}.py").read_text() for name in (NAME, f"test_{NAME}"))
    assert placer in file
    assert evaluator in file
    assert suite.partition("class ")[2] in tests
    assert blocks(PLACER, "toml")[0] in (EXAMPLE / "pyproject.toml").read_text()
    Path(f"{NAME}.py").write_text(f"{placer}\n\n{evaluator}")
    assert print_as_shown(PLACER) == 1
    Path("nmt-2.txt").write_text(profile(12))  # in place of the model of the page
    (line,) = blocks(PLACER)
    table = succeed(*shlex.split(line.replace("nmt-2", "nmt-2.txt"))[1:], "--max-evaluations=100")
    assert "largest load" in table
    assert f"\n{NAME}:CoordinateDescent " in table
    Path(f"test_{NAME}.py").write_text(suite)
    cases = importlib.import_module(f"test_{NAME}").TestCoordinateDescent()
    names = [name for name in dir(cases) if name.startswith("test_")]
    for name in names:
        getattr(cases, name)()
    assert len(names) >= 4


NAMES = ("placeto", *(f"placeto_{path.parent.name}" for path in PACKAGES))
IMPORTED = {name: importlib.import_module(name) for name in NAMES if name != "placeto_placeto"}
PROBLEM = two_chains()
# What examples of a package use without an import.
KNOWN: dict[str, dict[str, Any]] = {
    name: {
        **{exported: getattr(IMPORTED[name], exported) for exported in IMPORTED[name].__all__},
        name: IMPORTED[name],
        "problem": PROBLEM,
        "evaluator": PlainEvaluator(PROBLEM),
    }
    for name in ("placeto_graphs", "placeto_baselines")
}
KNOWN["placeto"] = KNOWN["placeto_tools"] = {"np": np}
MODULES = [
    module.name
    for name, package in IMPORTED.items()
    for module in pkgutil.walk_packages(package.__path__, f"{name}.")
]


@pytest.mark.parametrize("name", [*IMPORTED, *MODULES])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = KNOWN.get(name.partition(".")[0])
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs=names).failed == 0
