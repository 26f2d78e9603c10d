"""Each package and the console script, as pip installs them from their wheels."""

import json
import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from command_runs import profile

PINS = Path("3rdparty/python/requirements.txt").resolve()
PACKAGES = ("graphs", "simulator", "policy", "baselines", "workloads", "execution")
FOLDERS = {name: Path("packages", name).resolve() for name in PACKAGES}
FOLDERS["tools"] = Path("tools").resolve()
# What the lines of a README use besides what the package needs, and so name.
BESIDE = {"baselines": ["simulator"], "execution": ["workloads"]}
LIST = """
import importlib.metadata
print(*(found.name for found in importlib.metadata.distributions() if "placeto" in found.name))
"""


def run(*command: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell's environment, which knows no folder of this repository."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**environment, "PLACETO_CACHE_DIR": str(cwd), "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def pip(python: str | Path, command: str, *arguments: object, cwd: Path) -> None:
    """Run the pinned pip for an environment, some of which come without their own."""
    run(sys.executable, "-m", "pip", "--python", python, command, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of each package: Pants' own, or else made here."""
    folder = tmp_path_factory.mktemp("wheels")
    made = sorted(Path().resolve().glob("placeto_*.whl"))
    for wheel in made:
        (folder / wheel.name).symlink_to(wheel)
    if not made:
        options = ("--no-deps", "--build-constraint", PINS, "--wheel-dir", folder)
        pip(sys.executable, "wheel", *options, *FOLDERS.values(), cwd=folder)
    assert len(list(folder.glob("*.whl"))) == len(FOLDERS)
    return folder


def install(wheels: Path, folder: Path, *packages: str) -> Path:
    """Install packages, and what their metadata says, into an environment; return its Python.

    Third-party libraries are those of this environment. Those of the project come from the wheels
    alone: where a range does not admit a wheel, pip finds nothing and says so.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (library,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if "-packages" in path or path.endswith(".whl")]
    others += site.getsitepackages()
    (library / "others.pth").write_text("\n".join(dict.fromkeys(others)) + "\n")
    names = [f"placeto-{name}" for name in packages]
    pip(python, "install", "--no-index", "--find-links", wheels, *names, cwd=folder)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_package_alone_runs_the_lines_of_its_readme(
    wheels: Path, name: str, tmp_path: Path
) -> None:
    asked = [name, *BESIDE.get(name, [])]
    python = install(wheels, tmp_path / "environment", *asked)
    installed = set(run(python, "-I", "-c", LIST, cwd=tmp_path).stdout.split())
    expected = FOLDERS if name == "tools" else {"graphs", *asked}
    assert installed == {f"placeto-{one}" for one in expected}
    readme = (FOLDERS[name] / "README.md").read_text()
    lines = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert lines
    assert all(f"./packages/{one}" in readme for one in BESIDE.get(name, []))
    for block in lines:
        run(python, "-I", "-c", block, cwd=tmp_path)


@pytest.fixture(scope="module")
def script(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the command with all that it needs; return its console script."""
    return install(wheels, tmp_path_factory.mktemp("environment"), "tools").parent / "placeto"


@pytest.mark.slow
def test_the_installed_script_goes_from_a_profile_to_a_placement(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "graph.txt").write_text(profile())
    run(script, "build", "graph.txt", "-o", "problem.json.gz", cwd=tmp_path)
    place = (script, "place", "problem.json.gz", "-o", "placement.json")
    run(*place, "--placer", "local-search", "--budget", "200", cwd=tmp_path)
    printed = run(
        script, "simulate", "problem.json.gz", "placement.json", "--json", cwd=tmp_path
    ).stdout
    assert json.loads(printed)["fits"]
    refused = run(*place, "--placer", "heft", cwd=tmp_path, code=2)
    assert refused.stdout == ""
    assert refused.stderr == (
        "placeto: error: placement.json: is there already; --force overwrites it\n"
    )


@pytest.mark.slow
def test_the_installed_script_captures_a_model_of_the_current_folder(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_model.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(8, 2), torch.ones(4, 8)\n"
    )
    run(script, "build", "my_model:make", "--cluster=2xv100", "-o", "problem.json", cwd=tmp_path)
    train = (script, "train", "problem.json", "--updates=1", "--workers=2", "-o", "run")
    assert "1 updates" in run(*train, cwd=tmp_path).stdout
