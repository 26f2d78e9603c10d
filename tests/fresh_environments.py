"""Environments that hold what a test installs there: wheels of the packages, and libraries."""

import os
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

PINS = Path("3rdparty/python/requirements.txt").resolve()
FOLDERS: dict[str, Path] = {}
PROJECTS: dict[str, dict[str, Any]] = {}
for path in (*sorted(Path("packages").glob("*/pyproject.toml")), Path("tools/pyproject.toml")):
    project = tomllib.loads(path.read_text())
    FOLDERS[project["project"]["name"]] = path.parent.resolve()
    PROJECTS[project["project"]["name"]] = project


def run(*command: object, cwd: Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell's environment, which knows no folder of this repository.

    It must end with this code; None is for any.
    """
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(argument) for argument in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**environment, "PLACETO_CACHE_DIR": str(cwd), "OMP_NUM_THREADS": "1"},
    )
    assert code in {None, result.returncode}, result.stdout + result.stderr
    return result


def pip(python: str | Path, command: str, *arguments: object, cwd: Path) -> None:
    """Run the pinned pip for an environment, some of which come without their own."""
    run(sys.executable, "-m", "pip", "--python", python, command, *arguments, cwd=cwd)


def make_wheels(folder: Path) -> Path:
    """Put a wheel of each package into a folder: Pants' own, or else made here."""
    wheels_of_pants = sorted(Path().resolve().glob("placeto*.whl"))
    for wheel in wheels_of_pants:
        (folder / wheel.name).symlink_to(wheel)
    if not wheels_of_pants:
        options = ("--no-deps", "--build-constraint", PINS, "--wheel-dir", folder)
        pip(sys.executable, "wheel", *options, *FOLDERS.values(), cwd=folder)
    assert len(list(folder.glob("*.whl"))) == len(FOLDERS)
    return folder


def make_environment(folder: Path) -> tuple[Path, Path]:
    """Make an empty environment; return its Python, and the folder that it imports from."""
    venv.create(folder, with_pip=False, symlinks=True)
    (library,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", library


def link_library(name: str, library: Path) -> None:
    """Let an environment import a library, and pip find it there, as it is in this one."""
    distribution = metadata.distribution(name)
    assert distribution.files is not None
    # Pex leaves most files out of the list of an installed library, but not its top level.
    top_level = (distribution.read_text("top_level.txt") or "").split()
    for name_in_library in {*top_level, *(file.parts[0] for file in distribution.files)} - {".."}:
        (library / name_in_library).symlink_to(
            Path(str(distribution.locate_file(name_in_library))).resolve()
        )
