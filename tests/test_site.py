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

PACKAGES = ("graphs", "simulator", "policy", "baselines", "capture", "workloads", "execution")


@pytest.mark.slow
def test_the_site_has_every_page_and_name_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    (line,) = re.findall(r"^python -m sphinx .+$", Path("docs/contributing.md").read_text(), re.M)
    _, *options, output = shlex.split(line)
    assert output == "dist/site"
    command = [sys.executable, *options, str(tmp_path)]
    # A link or a name that leads nowhere fails.
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert made.returncode == 0, made.stderr
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.html")}

    api = [text for page, text in pages.items() if page.match("docs/api/*")]
    found = Counter(
        name for text in api for name in re.findall(r'<dt class="sig[^>]* id="([\w.]+)"', text)
    )
    for package in ("placeto", *(f"placeto_{name}" for name in PACKAGES)):
        exported = [f"{package}.{name}" for name in importlib.import_module(package).__all__]
        assert {name: found[name] for name in exported} == dict.fromkeys(exported, 1)

    sources = {path.relative_to("docs") for path in Path("docs").rglob("*.md")}
    assert [page for page in sources if "docs" / page.with_suffix(".html") not in pages] == []
    linked = set(re.findall(r"\]\(docs/([\w./-]+\.md)", Path("README.md").read_text()))
    wanted = {page.as_posix() for page in sources if page.parts[0] != "results"}
    assert wanted - linked == set()

    loads = r'<(?:iframe|img|link|script|source)\b[^>]*?(?:src|href)="([^"]*)"'
    loaded = {address for text in pages.values() for address in re.findall(loads, text)}
    for sheet in tmp_path.rglob("*.css"):
        loaded |= set(re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", sheet.read_text()))
    assert loaded
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []
