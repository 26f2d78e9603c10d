"""Packages have ranges that admit what they need.

Of third-party libraries the ranges admit the pinned version, and nothing else is installed.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

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
        here = version_of(requirement.name)
        assert admitted.contains(here), requirement
        later = Version(f"{here.major + 1}.0" if here.major else f"0.{here.minor + 1}")
        assert not admitted.contains(later)


def test_packages_meet_in_the_schema_and_few_see_several() -> None:
    needed = {
        package: {one.name for one in needed_by(package) if one.name in FOLDERS}
        for package in FOLDERS
    }
    face, command = needed.pop("placeto"), needed.pop("placeto-tools")
    assert not {"placeto-tools", "placeto-experiments"} & face
    assert "placeto-experiments" not in command
    assert needed.pop("placeto-experiments") >= {"placeto-tools"}  # a plug-in of the command
    assert needed.pop("placeto-graphs") == set()
    assert set(map(frozenset, needed.values())) == {frozenset({"placeto-graphs"})}


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
    run_by_pants = {(canonicalize_name(name), one) for name, one in (t.split("==") for t in texts)}
    assert installed | run_by_pants <= pins("requirements.txt").items()
