"""Lets the command find ``placeto experiment`` where its package runs from its sources.

What an installed package says of itself is written into a folder for this process and its children.
"""

import atexit
import shutil
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from placeto_tools.main import all_commands, placeto

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


try:
    distribution("placeto-experiments")
except PackageNotFoundError:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    folder = Path(tempfile.mkdtemp(prefix="placeto-experiments-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    described = folder / "placeto_experiments-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
        f"Summary: {project['description']}\n"
    )
    (described / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )
    sys.path.append(str(folder))
    placeto.commands.update(all_commands())
