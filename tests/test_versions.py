"""Each package has its own version, its changelog tells of it, and its dependents ask for it."""

import importlib
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

FOLDERS = {
    f"placeto-{folder.name}": folder
    for folder in (*sorted(Path("packages").glob("*/")), Path("tools"))
    if (folder / "pyproject.toml").exists()
}


def version_of(package: str) -> Version:
    return Version(importlib.import_module(package.replace("-", "_")).__version__)


def changes(package: str) -> dict[Version, str]:
    """Return what the changelog of a package says of each version, the newest first."""
    text = (FOLDERS[package] / "CHANGELOG.md").read_text()
    _, *parts = re.split(r"^## (\d\S*).*$", text, flags=re.MULTILINE)
    return {Version(version): part for version, part in zip(parts[::2], parts[1::2], strict=True)}


def breaks(new: Version, old: Version) -> bool:
    """Return whether a version may ask something of the callers of an earlier one."""
    return (new.major, new.major or new.minor) != (old.major, old.major or old.minor)


def siblings_of(package: str) -> list[Requirement]:
    project = tomllib.loads((FOLDERS[package] / "pyproject.toml").read_text())["project"]
    stated = [Requirement(text) for text in project["dependencies"]]
    return [requirement for requirement in stated if requirement.name in FOLDERS]


RANGES = [(package, requirement) for package in FOLDERS for requirement in siblings_of(package)]


@pytest.mark.parametrize("package", FOLDERS)
def test_the_changelog_has_the_version_first_and_all_in_order(package: str) -> None:
    versions = list(changes(package))
    assert versions[0] == version_of(package)
    assert versions == sorted(versions, reverse=True)


@pytest.mark.parametrize("package", FOLDERS)
def test_a_version_that_asks_something_of_callers_says_what(package: str) -> None:
    versions = list(changes(package))
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


def test_packages_meet_in_the_schema_and_only_the_command_sees_all() -> None:
    needed = {package: {one.name for one in siblings_of(package)} for package in FOLDERS}
    assert needed.pop("placeto-tools") == FOLDERS.keys() - {"placeto-tools"}
    assert needed.pop("placeto-graphs") == set()
    assert set(map(frozenset, needed.values())) == {frozenset({"placeto-graphs"})}
