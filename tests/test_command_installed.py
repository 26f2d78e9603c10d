"""Each package and the console script, as pip installs them from their wheels."""

import json
import site
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from command_runs import blocks, profile
from fresh_environments import FOLDERS, PROJECTS, make_environment, make_wheels, pip, run

# What the lines of a README use besides what the package needs, and so name.
BESIDE = {"placeto-baselines": ["placeto-simulator"], "placeto-execution": ["placeto-capture"]}
LIST = """
import importlib.metadata
print(*(found.name for found in importlib.metadata.distributions() if "placeto" in found.name))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


def install(wheels: Path, folder: Path, *packages: str) -> Path:
    """Install packages, and what their metadata says, into an environment; return its Python.

    Third-party libraries are those of this environment. Those of the project come from the wheels
    alone: where a range does not admit a wheel, pip finds nothing and says so.
    """
    python, library = make_environment(folder)
    library_folders = [path for path in sys.path if "-packages" in path or path.endswith(".whl")]
    library_folders += site.getsitepackages()
    (library / "others.pth").write_text("\n".join(dict.fromkeys(library_folders)) + "\n")
    from_wheels = ("--no-index", "--no-compile", "--find-links", wheels)
    pip(python, "install", *from_wheels, *packages, cwd=folder)
    installed = run(python, "-I", "-c", LIST, cwd=folder).stdout.split()
    stated = map(Requirement, PROJECTS[packages[0]]["project"]["dependencies"])
    assert set(installed) == {
        *packages,
        *({requirement.name for requirement in stated} & FOLDERS.keys()),
    }
    return python


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FOLDERS.keys() - {"placeto-tools"}))
def test_a_package_alone_runs_the_lines_of_its_readme(
    wheels: Path, name: str, tmp_path: Path
) -> None:
    beside = BESIDE.get(name, [])
    python = install(wheels, tmp_path / "environment", name, *beside)
    readme = FOLDERS[name] / "README.md"
    lines = blocks(readme, "python")
    assert lines
    assert all(FOLDERS[package].name in readme.read_text() for package in beside)
    shorter = "\n".join(lines).replace("seconds=1", "seconds=0.1")
    run(python, "-I", "-c", shorter, cwd=tmp_path)  # each alone: test_readmes.py


@pytest.mark.slow
def test_the_installed_script_goes_from_a_profile_or_a_model_to_a_placement_and_a_policy(
    wheels: Path, tmp_path: Path
) -> None:
    script = install(wheels, tmp_path / "environment", "placeto-tools").parent / "placeto"
    assert "experiment" not in run(script, "--help", cwd=tmp_path).stdout  # another package adds it
    (tmp_path / "graph.txt").write_text(profile())
    place = (script, "place", "graph.txt", "-o", "placement.json")
    search = ("--placer", "local-search", "--max-evaluations", "200", "--json")
    assert json.loads(run(*place, *search, cwd=tmp_path).stdout)["fits"]
    refused = run(*place, "--placer", "heft", cwd=tmp_path, code=2)
    expected = "placeto: error: placement.json: exists; --force overwrites it\n"
    assert (refused.stdout, refused.stderr) == ("", expected)
    (tmp_path / "my_model.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(8, 2), torch.ones(4, 8)\n"
    )
    train = (script, "train", "my_model:make", "--cluster=2xv100", "--updates=1", "-o", "run")
    assert "1 update, " in run(*train, cwd=tmp_path).stdout
