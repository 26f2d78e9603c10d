import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.+!]+)")
REQUIREMENTS = Path("3rdparty/python/requirements.txt")
MODELS = Path("3rdparty/python/models.txt")  # libraries that are not installed in CI
PROJECTS = sorted([*Path("packages").glob("*/pyproject.toml"), Path("tools/pyproject.toml")])


def pin_lines(*paths: Path) -> list[str]:
    text = "\n".join(path.read_text() for path in paths or (REQUIREMENTS,))
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def pins(*paths: Path) -> dict[str, str]:
    matches = (PIN_LINE.fullmatch(line) for line in pin_lines(*paths))
    return {canonicalize_name(match["name"]): match["version"] for match in matches if match}


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def stated_requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = project["project"].get("optional-dependencies", {})
    stated = [
        *project["build-system"]["requires"],
        *project["project"].get("dependencies", []),
        *(requirement for extra in extras.values() for requirement in extra),
    ]
    return [Requirement(text) for text in stated]


def test_every_line_pins_one_version() -> None:
    both = (REQUIREMENTS, MODELS)
    assert [line for line in pin_lines(*both) if not PIN_LINE.fullmatch(line)] == []
    assert len(pins(*both)) == len(pin_lines(*both))


@pytest.mark.parametrize("tool", ["pytest", "mypy"])
def test_the_build_runs_the_pinned_tools(tool: str) -> None:
    settings = read_toml(Path("pants.toml"))[tool]
    for text in [settings["version"], *settings["extra_requirements"]]:
        name, _, version = text.partition("==")
        assert version == pins()[canonicalize_name(name)], text


@pytest.mark.parametrize("path", PROJECTS, ids=str)
def test_every_stated_range_admits_the_pin(path: Path) -> None:
    for requirement in stated_requirements(read_toml(path)):
        if not requirement.name.startswith("placeto-"):
            pin = pins(REQUIREMENTS, MODELS)[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin, prereleases=True), requirement


def test_every_project_is_checked() -> None:
    assert len(PROJECTS) == 7


def test_everything_installed_is_pinned() -> None:
    installed = {
        canonicalize_name(distribution.name): distribution.version
        for distribution in metadata.distributions()
    }
    assert {"mypy", "pytest"} <= installed.keys()
    assert installed.items() <= pins().items()
