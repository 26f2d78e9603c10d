"""Packages have versions that their changelogs tell of, and ranges that admit what they need.

Of third-party libraries the ranges admit the pinned version, and nothing else is installed.
"""

import re
import tomllib
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FOLDERS: dict[str, Path] = {}
PROJECTS: dict[str, dict[str, Any]] = {}
for path in (*sorted(Path("packages").glob("*/pyproject.toml")), Path("tools/pyproject.toml")):
    project = tomllib.loads(path.read_text())
    FOLDERS[project["project"]["name"]] = path.parent
    PROJECTS[project["project"]["name"]] = project


def version_of(package: str) -> Version:
    """Return the version that hatchling reads and users see."""
    source = FOLDERS[package] / PROJECTS[package]["tool"]["hatch"]["version"]["path"]
    (version,) = re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)
    assert str(Version(version)) == version
    return Version(version)


def changes(package: str) -> dict[Version, str]:
    """Return what the changelog of a package says of each version, the newest first."""
    text = (FOLDERS[package] / "CHANGELOG.md").read_text()
    _, *parts = re.split(r"^## (\d\S*).*$", text, flags=re.MULTILINE)
    return {Version(version): part for version, part in zip(parts[::2], parts[1::2], strict=True)}


def breaks(new: Version, old: Version) -> bool:
    """Return whether a version may ask something of the callers of an earlier one."""
    return (new.major, new.major or new.minor) != (old.major, old.major or old.minor)


def siblings_of(package: str) -> list[Requirement]:
    stated = [Requirement(text) for text in PROJECTS[package]["project"]["dependencies"]]
    return [requirement for requirement in stated if requirement.name in FOLDERS]


RANGES = [(package, requirement) for package in FOLDERS for requirement in siblings_of(package)]


@pytest.mark.parametrize("package", FOLDERS)
def test_the_changelog_tells_of_each_version_and_of_what_it_asks(package: str) -> None:
    versions = list(changes(package))
    assert versions[0] == version_of(package)
    assert versions == sorted(versions, reverse=True)
    for new, old in pairwise(versions):
        said = "### What a caller has to do\n\n- " in changes(package)[new]
        assert said or not breaks(new, old), new


@pytest.mark.parametrize(
    ("package", "requirement"), RANGES, ids=[f"{package} {needed}" for package, needed in RANGES]
)
def test_a_range_admits_what_is_here_and_nothing_across_a_break(
    package: str, requirement: Requirement
) -> None:
    here = version_of(requirement.name)
    admitted = requirement.specifier
    assert admitted.contains(here), package
    for version in changes(requirement.name):
        assert not (breaks(here, version) and admitted.contains(version)), version
    later = Version(f"{here.major + 1}.0" if here.major else f"0.{here.minor + 1}")
    assert not admitted.contains(later)


def test_packages_meet_in_the_schema_and_few_see_several() -> None:
    needed = {package: {one.name for one in siblings_of(package)} for package in FOLDERS}
    face, command = needed.pop("placeto"), needed.pop("placeto-tools")
    assert not {"placeto-tools", "placeto-experiments"} & face
    assert "placeto-experiments" not in command
    assert needed.pop("placeto-experiments") >= {"placeto-tools"}  # a plug-in of the command
    assert needed.pop("placeto-graphs") == set()
    assert set(map(frozenset, needed.values())) == {frozenset({"placeto-graphs"})}


def pins(*names: str) -> dict[str, str]:
    """Return the version that these files pin of each library, and refuse a line with another."""
    text = "".join(Path("3rdparty/python", name).read_text() for name in names)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("package", FOLDERS)
def test_every_stated_range_admits_the_pin(package: str) -> None:
    project = PROJECTS[package]["project"]
    stated = [*PROJECTS[package]["build-system"]["requires"], *project["dependencies"]]
    for extra in project.get("optional-dependencies", {}).values():
        stated += extra
    pinned = pins("requirements.txt", "models.txt")
    for requirement in map(Requirement, stated):
        if requirement.name not in FOLDERS:
            pin = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin, prereleases=True), requirement


def test_the_build_runs_the_pinned_tools() -> None:
    settings = tomllib.loads(Path("pants.toml").read_text())
    stated = [settings[tool] for tool in ("pytest", "mypy")]
    pairs = [
        text.split("==")
        for tool in stated
        for text in [tool["version"], *tool["extra_requirements"]]
    ]
    assert {canonicalize_name(name): version for name, version in pairs}.items() <= pins(
        "requirements.txt"
    ).items()


def test_everything_installed_is_pinned() -> None:
    installed = {
        (canonicalize_name(distribution.name), Version(distribution.version).public)
        for distribution in metadata.distributions()
        if distribution.name not in FOLDERS
    }
    assert ("pytest", pytest.__version__) in installed
    assert installed <= pins("requirements.txt").items()
