"""The site of the documentation is made without a warning, is complete, and stands alone."""

import importlib
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from command_runs import environment

PACKAGES = (
    "placeto",
    "placeto_baselines",
    "placeto_capture",
    "placeto_execution",
    "placeto_graphs",
    "placeto_policy",
    "placeto_simulator",
    "placeto_workloads",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the site as the page says; a link or a name that leads nowhere fails."""
    folder = tmp_path_factory.mktemp("site")
    (line,) = re.findall(r"^python -m sphinx .+$", Path("docs/contributing.md").read_text(), re.M)
    _, *options, output = shlex.split(line)
    assert output == "dist/site"
    command = [sys.executable, *options, str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference_once(site: Path, package: str) -> None:
    found = Counter(
        name
        for page in (site / "docs" / "api").glob("*.html")
        for name in re.findall(r'<dt class="sig[^>]* id="([\w.]+)"', page.read_text())
    )
    exported = importlib.import_module(package).__all__
    assert {name: found[f"{package}.{name}"] for name in exported} == dict.fromkeys(exported, 1)


@pytest.mark.slow
def test_every_page_is_there_and_the_readme_leads_to_all_but_results(site: Path) -> None:
    pages = {path.relative_to("docs") for path in Path("docs").rglob("*.md")}
    assert [
        page for page in pages if not (site / "docs" / page.with_suffix(".html")).exists()
    ] == []
    linked = set(re.findall(r"\]\(docs/([\w./-]+\.md)", Path("README.md").read_text()))
    wanted = {page.as_posix() for page in pages if page.parts[0] != "results"}
    assert wanted - linked == set()


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = {
        address
        for page in site.rglob("*.html")
        for tag in re.findall(r"<(?:iframe|img|link|script|source)\b[^>]*>", page.read_text())
        for address in re.findall(r'(?:src|href)="([^"]*)"', tag)
    }
    styles = {
        address
        for sheet in site.rglob("*.css")
        for address in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", sheet.read_text())
    }
    assert loaded
    assert [address for address in loaded | styles if re.match(r"(\w+:)?//", address)] == []
