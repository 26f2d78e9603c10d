"""The repository as a whole: versions and ranges, the checks of ``./pants lint``, the site."""

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from command_runs import environment
from fresh_environments import FOLDERS, PROJECTS


def version_of(package: str) -> Version:
    """Return the version that hatchling reads and users see."""
    source = FOLDERS[package] / PROJECTS[package]["tool"]["hatch"]["version"]["path"]
    (version,) = re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)
    assert str(Version(version)) == version
    return Version(version)


def needed_by(package: str) -> list[Requirement]:
    """Return what a package, its extras and its build need."""
    project = PROJECTS[package]["project"]
    extras = project.get("optional-dependencies", {}).values()
    stated = [*PROJECTS[package]["build-system"]["requires"], *project["dependencies"]]
    return [*map(Requirement, [*stated, *(text for extra in extras for text in extra)])]


def pins(*names: str) -> dict[str, str]:
    """Return the version that these files pin of each library, and refuse a line with another."""
    text = "".join(Path("3rdparty/python", name).read_text() for name in names)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_range_admits_the_pin_or_what_is_here_and_nothing_across_a_break(package: str) -> None:
    pinned = pins("requirements.txt", "models.txt")
    for requirement in needed_by(package):
        admitted = requirement.specifier
        if requirement.name not in FOLDERS:
            pin = pinned[canonicalize_name(requirement.name)]
            assert admitted.contains(pin, prereleases=True), requirement
            continue
        version = version_of(requirement.name)
        assert admitted.contains(version), requirement
        later = Version(f"{version.major + 1}.0" if version.major else f"0.{version.minor + 1}")
        assert not admitted.contains(later)


@pytest.mark.parametrize("package", FOLDERS)
def test_a_changelog_begins_with_the_version_of_its_package_and_a_date(package: str) -> None:
    newest, *_ = re.findall(r"^## (.+)$", (FOLDERS[package] / "CHANGELOG.md").read_text(), re.M)
    version, _, released = newest.partition(" - ")
    assert Version(version) == version_of(package)
    date.fromisoformat(released)
    if package == "placeto":
        lines = Path("CITATION.cff").read_text().splitlines()
        assert {f"version: {version}", f"date-released: {released}"} <= set(lines)


def test_packages_meet_in_the_schema_and_few_see_several() -> None:
    siblings_of = {
        package: {
            requirement.name for requirement in needed_by(package) if requirement.name in FOLDERS
        }
        for package in FOLDERS
    }
    face, command = siblings_of.pop("placeto"), siblings_of.pop("placeto-tools")
    assert not {"placeto-tools", "placeto-experiments"} & face
    assert "placeto-experiments" not in command
    assert siblings_of.pop("placeto-experiments") >= {"placeto-tools"}  # a plug-in of the command
    assert siblings_of.pop("placeto-graphs") == set()
    assert set(map(frozenset, siblings_of.values())) == {frozenset({"placeto-graphs"})}


def test_the_build_runs_pinned_tools_and_everything_installed_is_pinned() -> None:
    settings = tomllib.loads(Path("pants.toml").read_text())
    stated = [settings[tool] for tool in ("pytest", "mypy")]
    texts = [text for tool in stated for text in (tool["version"], *tool["extra_requirements"])]
    installed = {
        (canonicalize_name(distribution.name), Version(distribution.version).public)
        for distribution in metadata.distributions()
        if distribution.name not in FOLDERS
    }
    assert ("pytest", pytest.__version__) in installed
    run_by_pants = {(canonicalize_name(name), pin) for name, pin in (t.split("==") for t in texts)}
    assert installed | run_by_pants <= pins("requirements.txt").items()


TABLE = "| a | b |\n|---|---|\n"
GOOD = f"""# A page

A sentence of a few words: it ends here. Why? Code such as `for member in schemes: walk(member)` and
[links](beside.md) count as words.

- **An item.** {"word " * 20}.

{TABLE}{"| 1 | 2 |" * 20}

```
{"beside " * 50}
```
"""


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the package of the checks, which Pants imports from its folder of plug-ins."""
    monkeypatch.syspath_prepend(Path("pants-plugins").resolve())
    for check in ("pages", "reference", "sizes"):
        importlib.import_module(f"repository.{check}")
    return sys.modules["repository"]


WORDS = "word " * 26


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (GOOD, None),
        (f"# Page\n\nWord.\nOne {WORDS}\nends.", "4: sentence: 28 words, more than 25:"),
        ("Short. What is given is a sentence.", "1: sentence: begins with What:"),
        ("```\ncode\n```\n\nThe placer walks\non.", "5: term: 'walks'; write: annealing chain"),
        ("Times\nin place\nof costs.", "2: term: 'in place of'; write: instead of"),
        (TABLE + "| 1 | 2 |\n" * 21, "1: rows: 21, more than 20"),
        ("Text.\n\n" + "|a" * 9 + "|\n" + "|-" * 9 + "|\n", "3: columns: 9, more than 8"),
        ("Line.\n" * 201, "201: lines: more than 200"),
        (f"# {'word ' * 12}words\n", "1: heading: more than 60 characters"),
    ],
)
def test_each_kind_of_finding_has_its_line(checks: Any, text: str, where: str | None) -> None:
    assert checks.pages.PAGE.fullmatch("packages/graphs/README.md")
    assert not checks.pages.PAGE.fullmatch("docs/results/table1.md")
    lines = checks.pages.findings("page.md", text)
    assert [line.startswith(f"page.md:{where}") for line in lines] == [True] * bool(where)


CODE = '''"""The docstring of a module."""

# A comment.
def shout(text: str) -> str:
    """The docstring of a function."""
    return (
        "loud: "
        f"{text.upper()!r}, {len(f'{text}')}"
    )
'''
SCRIPT = """// A comment.
const text = "// no comment"; /* Another
one. */
"""


@pytest.mark.parametrize(("name", "text", "size"), [("a.py", CODE, 15), ("a.js", SCRIPT, 5)])
def test_comments_docstrings_and_layout_are_no_tokens(
    checks: Any, name: str, text: str, size: int
) -> None:
    assert checks.sizes.count_tokens(name, text) == size


def test_a_room_may_have_its_number_of_tokens_and_no_more(checks: Any) -> None:
    files = {"one/a.py": b"a = 1\n", "one/deep/b.js": b"c", "one-more/c.py": b"d\n" * 9}
    assert checks.sizes.too_large("# Rooms\none 4\none-more 9\nempty 0\n", files) == []
    (line,) = checks.sizes.too_large("one 3\none-more 9\n", files)
    assert line.startswith("one: 4 tokens of code, more than 3: ")


def test_a_table_that_is_written_anew_leaves_three_percent(checks: Any) -> None:
    files = {"one/a.py": b"a\n" * 100, "two/b.py": b"b\n"}
    table = checks.sizes.write_table("# Rooms\none 4\nempty 7\n", files)
    assert table == "# Rooms\none 103\nempty 0\n"


MODULE = """
def place(problem, seed):
    {docstring!r}
    raise ValueError

class Search:
    "A search of ``max_evaluations``."

    def __init__(self, max_evaluations): ...

    def run(self, seed):
        "Run it with a ``seed``."

    def _step(self, level): ...

def helper(level): ...
"""
SECTIONS = """Place.

Parameters
----------
problem, seed : int
{description}
Raises
------
ValueError
"""


@pytest.mark.parametrize(
    ("docstring", "undocumented"),
    [
        ("Place a problem by a seed; ValueError if it cannot.", []),
        ("Place a problem; ValueError if it cannot.", ["no docstring describes seed"]),
        ("Place a problem by a seed.", ["raises an error that no docstring names"]),
        (SECTIONS.format(description="    The problem."), []),
        (
            SECTIONS.format(description=""),
            ["no docstring describes problem", "no docstring describes seed"],
        ),
    ],
)
def test_docstrings_describe_parameters_and_errors(
    checks: Any, docstring: str, undocumented: list[str]
) -> None:
    files = {
        "packages/new/src/new/__init__.py": b'__all__ = ["Search", "place"]',
        "packages/new/src/new/places.py": MODULE.format(docstring=docstring).encode(),
    }
    assert checks.reference.findings(files) == [
        f"packages/new/src/new/places.py:2: place: {finding}" for finding in undocumented
    ]


CLASS = """
class Search:
    "A search."

    def __init__(self, budget): ...

    def run(self, level, /, *, seed): ...
"""


def test_parameters_of_all_kinds_and_of_constructors_are_described(checks: Any) -> None:
    files = {
        "packages/new/src/new/__init__.py": b'__all__ = ["Search"]',
        "packages/new/src/new/search.py": CLASS.encode(),
    }
    lines = [line.partition(".py:")[2] for line in checks.reference.findings(files)]
    assert lines == [
        "5: Search.__init__: no docstring describes budget",
        "7: Search.run: no docstring describes level",
        "7: Search.run: no docstring describes seed",
    ]


def test_hooks_of_a_commit_run_the_checks_of_the_repository(checks: Any) -> None:
    text = Path(".pre-commit-config.yaml").read_text()
    scripts = re.findall(r"entry: python pants-plugins/repository/(\w+)\.py$", text, re.M)
    assert [vars(checks)[script].__name__ for script in scripts] == [
        "repository.pages",
        "repository.reference",
        "repository.sizes",
    ]
    assert f"files: ^{checks.pages.PAGE.pattern}$" in text
    assert "http" not in text


PACKAGES = ("graphs", "simulator", "policy", "baselines", "capture", "workloads", "execution")


@pytest.mark.slow
def test_the_site_has_every_page_and_name_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    (line,) = re.findall(r"^python -m sphinx .+$", Path("docs/contributing.md").read_text(), re.M)
    _, *options, output = shlex.split(line)
    assert output == "dist/site"
    command = [sys.executable, *options, str(tmp_path)]
    # A link or a name that leads nowhere fails.
    sphinx = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert sphinx.returncode == 0, sphinx.stderr
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.html")}

    api = [text for page, text in pages.items() if page.match("docs/api/*")]
    num_entries = Counter(
        name for text in api for name in re.findall(r'<dt class="sig[^>]* id="([\w.]+)"', text)
    )
    for package in ("placeto", *(f"placeto_{name}" for name in PACKAGES)):
        exported = [f"{package}.{name}" for name in importlib.import_module(package).__all__]
        assert {name: num_entries[name] for name in exported} == dict.fromkeys(exported, 1)

    sources = {path.relative_to("docs") for path in Path("docs").rglob("*.md")}
    assert [page for page in sources if "docs" / page.with_suffix(".html") not in pages] == []
    linked = set(re.findall(r"\]\(docs/([\w./-]+\.md)", Path("README.md").read_text()))
    linkable = {page.as_posix() for page in sources if page.parts[0] != "results"}
    assert linkable - linked == set()

    loads = r'<(?:iframe|img|link|script|source)\b[^>]*?(?:src|href)="([^"]*)"'
    loaded = {address for text in pages.values() for address in re.findall(loads, text)}
    for sheet in tmp_path.rglob("*.css"):
        loaded |= set(re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", sheet.read_text()))
    assert loaded
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []
