"""Lets the command find ``placeto experiment`` where its package runs from its sources.

What an installed package says of itself is written into a folder for this process and its children.
To be imported before `placeto_tools.main`.
"""

import atexit
import shutil
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "packages/experiments/pyproject.toml"


def add_metadata(folder: Path) -> None:
    """Write the metadata of the package into a folder of ``sys.path``."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    described = folder / f"{project['name'].replace('-', '_')}-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
        f"Summary: {project['description']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.append(str(folder))


try:
    distribution("placeto-experiments")
except PackageNotFoundError:
    made = tempfile.mkdtemp(prefix="placeto-experiments-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    add_metadata(Path(made))
